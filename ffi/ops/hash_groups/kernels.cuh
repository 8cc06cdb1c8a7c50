// The kernels of hash_groups. A block combines the items of each key in a table in shared memory, and adds the table to
// that in device memory, whose places all blocks claim by compare-and-swap. If there may be more groups than the
// block's table has entries for, the rows are first partitioned by the highest bits of their keys' hashes, so that
// neighbouring rows have few keys. The states are integers, so the order of the rows does not matter.
#pragma once

#include "algorithm/partition_point.h"
#include "cuda/block/partition.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/ptx.cuh"
#include "ops/hash_groups/plan.h"

namespace mgpu::cuda::hash_grouping {

constexpr int kMaxProbes = 8;          // entries of a block's table that a key may take
constexpr int kMaxFarProbes = 1 << 9;  // the same of the table in device memory, which has two entries for each group
constexpr int kNoEntry = -1;

// One problem.
template <typename Word>
struct GroupTask {
  int64_t length;
  int64_t row;
  LiveCounts counts;
  const Word* keys;
  Word empty;  // the key of entries without a group
  int64_t entries;
  int columns;
  const uint32_t* values[kMaxGroupColumns];  // null if each row is a 1
  uint32_t flips[kMaxGroupColumns];
  bool is_maximum[kMaxGroupColumns];
  Word* table_keys;  // [1 + entries]; the first entry is that of the key `empty`
  uint32_t* states[kMaxGroupColumns];
  uint32_t* counters;
  HashGroupsOperands::Scratch scratch;

  __device__ bool bucketed() const { return scratch.starts != nullptr; }
  __device__ int64_t live() const { return counts(row, length); }
  __device__ Word* moved_keys() const { return static_cast<Word*>(scratch.keys); }
};

// Bits that depend on all bits of a key (the finalizers of MurmurHash3). The highest ones number the bucket, the lowest
// ones the entry.
__device__ __forceinline__ uint32_t hash_of(uint32_t key) {
  key = (key ^ key >> 16) * 0x85ebca6bu;
  key = (key ^ key >> 13) * 0xc2b2ae35u;
  return key ^ key >> 16;
}
__device__ __forceinline__ uint32_t hash_of(uint64_t key) {
  key = (key ^ key >> 33) * 0xff51afd7ed558ccdull;
  key = (key ^ key >> 33) * 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(key >> 32 ^ key);
}
__device__ __forceinline__ int bucket_of(uint32_t hash) { return static_cast<int>(hash >> (32 - kGroupBucketBits)); }

__device__ __forceinline__ uint32_t claim(uint32_t* place, uint32_t empty, uint32_t key) {
  return atomicCAS(place, empty, key);
}
__device__ __forceinline__ uint64_t claim(uint64_t* place, uint64_t empty, uint64_t key) {
  return atomicCAS(reinterpret_cast<unsigned long long*>(place), static_cast<unsigned long long>(empty),
                   static_cast<unsigned long long>(key));
}

// ---- The table in device memory

template <typename Word>
__global__ void __launch_bounds__(kFillThreads) fill_groups(const __grid_constant__ GroupTask<Word> task) {
  start_next_kernel();
  const int64_t i = int64_t{blockIdx.x} * kFillThreads + threadIdx.x;
  if (i < task.entries + 1) {
    task.table_keys[i] = task.empty;
    for (int c = 0; c < task.columns; ++c) task.states[c][i] = 0;
  }
  if (i < kGroupCounters) task.counters[i] = 0;
  if (task.bucketed() && i < kGroupBuckets) task.scratch.totals[i] = 0;
}

// Combines a state of a group in memory.
__device__ __forceinline__ void combine(bool is_maximum, uint32_t* to, uint32_t state) {
  if (!is_maximum) {
    if (state != 0) atomicAdd(to, state);
  } else if (*static_cast<volatile uint32_t*>(to) < state) {
    atomicMax(to, state);
  }
}

// Combines states of a key in device memory. Returns whether the key is new. `states` gives the state of a column.
template <int kColumns, typename Word, typename States>
__device__ __forceinline__ bool combine_far(const GroupTask<Word>& task, Word key, States states) {
  int64_t at = 0;
  bool is_new = false;
  if (key == task.empty) {
    is_new = atomicOr(task.counters + kEmptyKeyUsed, 1u) == 0;
  } else {
    const auto mask = static_cast<uint32_t>(task.entries - 1);
    uint32_t place = hash_of(key) & mask;
    int probes = 0;
    for (;; place = (place + 1) & mask) {
      Word owner = *static_cast<volatile Word*>(task.table_keys + 1 + place);
      if (owner == task.empty) {
        owner = claim(task.table_keys + 1 + place, task.empty, key);
        is_new = owner == task.empty;
      }
      if (is_new || owner == key) break;
      if (++probes % 4 == 0) {  // once some key has found no place, the results are not used
        volatile uint32_t* const left_out = task.counters + kGroupsLeftOut;
        if (probes == kMaxFarProbes) *left_out = 1;
        if (*left_out != 0) return false;
      }
    }
    at = 1 + int64_t{place};
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) combine(task.is_maximum[c], task.states[c] + at, states(c));
  return is_new;
}

// ---- The partition

template <typename Word>
__global__ void __launch_bounds__(kCountThreads) count_buckets(const __grid_constant__ GroupTask<Word> task) {
  __shared__ uint32_t counts[kGroupBuckets * kCountCopies];
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kGroupBuckets * kCountCopies; i += kCountThreads) counts[i] = 0;
  __syncthreads();
  const int64_t live = task.live(), step = int64_t{gridDim.x} * kCountThreads * kCountItems;
  for (int64_t first = int64_t{blockIdx.x} * kCountThreads * kCountItems; first < live; first += step) {
    Word keys[kCountItems];
#pragma unroll
    for (int k = 0; k < kCountItems; ++k) keys[k] = task.keys[minimum(first + k * kCountThreads + thread, live - 1)];
#pragma unroll
    for (int k = 0; k < kCountItems; ++k) {
      if (first + k * kCountThreads + thread < live)
        atomicAdd(counts + bucket_of(hash_of(keys[k])) * kCountCopies + thread % kCountCopies, 1u);
    }
  }
  __syncthreads();
  wait_for_last_kernel();  // the totals are zero
  start_next_kernel();
  for (int bucket = thread; bucket < kGroupBuckets; bucket += kCountThreads) {
    uint32_t sum = 0;
    for (int copy = 0; copy < kCountCopies; ++copy)
      sum += counts[bucket * kCountCopies + (copy + bucket) % kCountCopies];
    if (sum != 0) atomicAdd(task.scratch.totals + bucket, sum);
  }
}

// Turns the buckets' numbers of rows into their starts. One block of a thread per bucket.
template <typename Word>
__global__ void __launch_bounds__(kGroupBuckets) start_buckets(const __grid_constant__ GroupTask<Word> task) {
  __shared__ int sums[kGroupBuckets / kWarp];
  wait_for_last_kernel();
  start_next_kernel();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto [before, all] = sum_block<kGroupBuckets / kWarp>(sums, static_cast<int>(task.scratch.totals[thread]));
  task.scratch.starts[thread] = task.scratch.totals[thread] = static_cast<uint32_t>(before);
  if (thread == 0) task.scratch.starts[kGroupBuckets] = static_cast<uint32_t>(all);
}

template <typename Word, int kTile>
struct PartitionShared {
  Word keys[kTile];
  uint32_t values[kMaxGroupColumns][kTile];
  alignas(16) uint32_t counts[kGroupBuckets * kRankCopies + 4];
  uint32_t bases[kGroupBuckets];
  int sums[kPartitionThreads / kWarp];
};

// Brings a tile's rows to their buckets, one block per tile. The order of a bucket's rows is not fixed.
template <typename Word, int kTile>
__global__ void __launch_bounds__(kPartitionThreads, kPartitionBlocks)
    partition_rows(const __grid_constant__ GroupTask<Word> task) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<PartitionShared<Word, kTile>*>(shared_bytes);
  constexpr int kItems = kTile / kPartitionThreads;
  constexpr int kThreadCounts = kGroupBuckets * kRankCopies / kPartitionThreads;
  static_assert(kThreadCounts == 4, "a thread scans its counters as one vector");
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{blockIdx.x} * kTile;
  const auto size = static_cast<int>(clamp<int64_t>(task.live() - first, 0, kTile));
  auto* const counters = reinterpret_cast<uint4*>(shared.counts) + thread;
  *counters = make_uint4(0, 0, 0, 0);
  Word keys[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int i = k * kPartitionThreads + thread;
    keys[k] = i < size ? task.keys[first + i] : 0;
  }
  __syncthreads();
  const auto counter = [&](Word key) { return bucket_of(hash_of(key)) * kRankCopies + thread % kRankCopies; };
  uint32_t places[kItems];
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (k * kPartitionThreads + thread < size) places[k] = atomicAdd(shared.counts + counter(keys[k]), 1u);
  }
  __syncthreads();
  const uint4 own = *counters;
  const auto sum = static_cast<int>(own.x + own.y + own.z + own.w);
  const auto before = static_cast<uint32_t>(sum_block<kPartitionThreads / kWarp>(shared.sums, sum).before);
  *counters = make_uint4(before, before + own.x, before + own.x + own.y, before + own.x + own.y + own.z);
  if (thread == 0) shared.counts[kGroupBuckets * kRankCopies] = size;
  __syncthreads();
  wait_for_last_kernel();  // the starts are known
  if (thread < kGroupBuckets) {
    const uint32_t start = shared.counts[thread * kRankCopies], end = shared.counts[(thread + 1) * kRankCopies];
    if (end > start) shared.bases[thread] = atomicAdd(task.scratch.totals + thread, end - start) - start;
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    if (k * kPartitionThreads + thread >= size) continue;
    places[k] += shared.counts[counter(keys[k])];
    shared.keys[places[k]] = keys[k];
  }
  for (int c = 0; c < task.columns; ++c) {
    if (!task.values[c]) continue;
    uint32_t values[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int i = k * kPartitionThreads + thread;
      values[k] = i < size ? task.values[c][first + i] : 0;
    }
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k * kPartitionThreads + thread < size) shared.values[c][places[k]] = values[k];
    }
  }
  start_next_kernel();
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int at = k * kPartitionThreads + thread;
    if (at >= size) break;
    const Word key = shared.keys[at];
    const uint32_t to = shared.bases[bucket_of(hash_of(key))] + static_cast<uint32_t>(at);
    task.moved_keys()[to] = key;
    for (int c = 0; c < task.columns; ++c) {
      if (task.values[c]) task.scratch.values[c][to] = shared.values[c][at];
    }
  }
}

// ---- The block's table

template <typename Word, int kColumns, int kEntries>
struct BlockTable {
  Word keys[kEntries];
  uint32_t states[kColumns][kEntries + 1];  // the last entry is that of the key `empty`
  uint32_t has_empty_key;
};

template <typename Word, int kColumns, int kEntries>
class RowCombiner {
 public:
  static constexpr int kCombineItems = kGroupItems<Word>;
  using Table = BlockTable<Word, kColumns, kEntries>;

  __device__ RowCombiner(const GroupTask<Word>& task, Table& table) : task_(task), table_(table) {
    const bool moved = task.bucketed();
    keys_ = moved ? task.moved_keys() : task.keys;
    for (int c = 0; c < kColumns; ++c) {
      values_[c] = moved && task.values[c] ? task.scratch.values[c] : task.values[c];
    }
  }

  // Combines rows of one bucket. All threads of the block call it.
  __device__ __forceinline__ void combine_rows(uint32_t begin, uint32_t end) {
    for (int i = threadIdx.x; i < kEntries; i += kCombineThreads) {
      table_.keys[i] = task_.empty;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) table_.states[c][i] = 0;
    }
    if (threadIdx.x < kColumns) table_.states[threadIdx.x][kEntries] = 0;
    if (threadIdx.x == 0) table_.has_empty_key = 0;
    __syncthreads();
    load(begin, end);
#pragma unroll 1
    for (uint32_t first = begin; first < end; first += kStep) {
      Rows rows = next_;
      load(first + kStep, end);
      combine_loaded(rows, first, end);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < kEntries; i += kCombineThreads) {
      if (table_.keys[i] != task_.empty) flush(table_.keys[i], i);
    }
    if (threadIdx.x == 0 && table_.has_empty_key != 0) flush(task_.empty, kEntries);
    __syncthreads();
  }

  // The number of groups that this thread was the first to find.
  __device__ uint32_t found() const { return found_; }

 private:
  static constexpr uint32_t kStep = kCombineThreads * kCombineItems;
  struct Rows {
    Word keys[kCombineItems];
    uint32_t values[kColumns > 0 ? kColumns : 1][kCombineItems];
  };

  __device__ __forceinline__ void load(uint32_t first, uint32_t end) {
#pragma unroll
    for (int k = 0; k < kCombineItems; ++k) {
      const uint32_t i = minimum(first + k * kCombineThreads + threadIdx.x, end - 1);
      next_.keys[k] = keys_[i];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) next_.values[c][k] = values_[c] ? values_[c][i] : 1;
    }
  }

  __device__ __forceinline__ void combine_loaded(Rows& rows, uint32_t first, uint32_t end) {
    int entries[kCombineItems];
    Word owners[kCombineItems];
#pragma unroll
    for (int k = 0; k < kCombineItems; ++k) {
      entries[k] = static_cast<int>(hash_of(rows.keys[k]) & (kEntries - 1));
      owners[k] = *static_cast<volatile Word*>(table_.keys + entries[k]);
    }
#pragma unroll
    for (int k = 0; k < kCombineItems; ++k) {
      const bool is_row = first + k * kCombineThreads + threadIdx.x < end;
      if (owners[k] != rows.keys[k] || owners[k] == task_.empty || !is_row) {
        entries[k] = is_row ? find_entry(rows.keys[k], entries[k]) : kNoEntry;
        if (is_row && entries[k] == kNoEntry)
          found_ += combine_far<kColumns>(task_, rows.keys[k], [&](int c) { return coded(c, rows.values[c][k]); });
      }
    }
#pragma unroll
    for (int k = 0; k < kCombineItems; ++k) {
      const bool alike = __all_sync(~0u, entries[k] == __shfl_sync(~0u, entries[k], 0));
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        uint32_t state = coded(c, rows.values[c][k]);
        bool is_used = entries[k] != kNoEntry;
        if (alike && !task_.is_maximum[c]) {
          state = fold_warp(state, [](uint32_t a, uint32_t b) { return a + b; });
          is_used &= threadIdx.x % kWarp == 0;
        }
        if (is_used) combine(task_.is_maximum[c], table_.states[c] + entries[k], state);
      }
    }
  }

  __device__ __forceinline__ int find_entry(Word key, int entry) {
    if (key == task_.empty) {
      table_.has_empty_key = 1;
      return kEntries;
    }
#pragma unroll 1
    for (int probes = 0; probes < kMaxProbes; ++probes) {
      Word owner = *static_cast<volatile Word*>(table_.keys + entry);
      if (owner == task_.empty) {
        owner = claim(table_.keys + entry, task_.empty, key);
        if (owner == task_.empty) return entry;
      }
      if (owner == key) return entry;
      entry = (entry + 1) & (kEntries - 1);
    }
    return kNoEntry;
  }

  __device__ __forceinline__ uint32_t coded(int c, uint32_t value) const { return value ^ task_.flips[c]; }

  __device__ __forceinline__ void flush(Word key, int entry) {
    found_ += combine_far<kColumns>(task_, key, [&](int c) { return table_.states[c][entry]; });
  }

  const GroupTask<Word>& task_;
  Table& table_;
  const Word* keys_;
  const uint32_t* values_[kColumns > 0 ? kColumns : 1];
  Rows next_;
  uint32_t found_ = 0;
};

// Combines all rows; each block takes an equal part of them.
template <typename Word, int kColumns, int kEntries>
__global__ void __launch_bounds__(kCombineThreads, kCombineBlocks<Word>)
    combine_groups(const __grid_constant__ GroupTask<Word> task) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  auto& table = *reinterpret_cast<BlockTable<Word, kColumns, kEntries>*>(shared_bytes);
  wait_for_last_kernel();
  start_next_kernel();
  const auto live = static_cast<uint32_t>(task.live());
  const uint32_t share = ceil_div<uint32_t>(live, gridDim.x);
  const uint32_t begin = minimum(blockIdx.x * share, live), end = minimum(begin + share, live);
  RowCombiner<Word, kColumns, kEntries> combiner(task, table);
  if (!task.bucketed()) {
    if (begin < end) combiner.combine_rows(begin, end);
  } else {
    int bucket = partition_point(0, kGroupBuckets, [&](int i) { return task.scratch.starts[i + 1] <= begin; });
    for (uint32_t from = begin; from < end; ++bucket) {
      const uint32_t to = minimum(task.scratch.starts[bucket + 1], end);
      if (from < to) combiner.combine_rows(from, to);
      from = to;
    }
  }
  const uint32_t found = fold_warp(combiner.found(), [](uint32_t a, uint32_t b) { return a + b; });
  if (threadIdx.x % kWarp == 0 && found != 0) atomicAdd(task.counters + kGroupsFound, found);
}

}  // namespace mgpu::cuda::hash_grouping
