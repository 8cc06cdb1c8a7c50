// The kernels of hash_groups. A block combines rows of equal keys in a table in shared memory, and then this table with
// that in device memory. Rows that find no place in the block's table go to device memory at once.
// With `bucketed`, the rows of each tile are first sorted by bucket, the highest bits of a key's hash.
// A block then has a range of rows in the order of the buckets.
// The states are integers, so the order of the rows does not matter.
#pragma once

#include "algorithm/partition_point.h"
#include "cuda/block/partition.cuh"
#include "cuda/block/scan.cuh"
#include "cuda/ptx.cuh"
#include "ops/hash_groups/plan.h"

namespace mgpu::cuda::hash_grouping {

constexpr int kGroupKeys = 4;          // neighbouring entries of a block's table, which a thread reads at once
constexpr int kMaxProbes = 8;          // the most probes of find_entry
constexpr int kMaxFarProbes = 1 << 9;  // the most probes of combine_far, which read one entry each
constexpr int kNoEntry = -1;

// One problem.
template <typename Word>
struct GroupTask {
  int64_t length;
  int64_t row;
  LiveCounts counts;
  const Word* keys;  // null if keys are pairs of `upper` and `lower`
  const uint32_t* upper;
  const uint32_t* lower;
  Word flip_of_pairs;
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

  __device__ bool bucketed() const { return scratch.runs != nullptr; }
  __device__ int64_t live() const { return counts(row, length); }
  __device__ bool has_pairs() const { return sizeof(Word) == 8 && lower != nullptr; }
  __device__ Word pair(int64_t i) const {
    if constexpr (sizeof(Word) == 8) return (Word{upper[i]} << 32 | lower[i]) ^ flip_of_pairs;
    return upper[i];
  }
};

// Bits that depend on all bits of a key (after the finalizers of MurmurHash3). The
// highest ones number the bucket, the lowest ones say where a search in a table begins.
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
  if (i < kGroupBuckets * int64_t{task.scratch.units}) task.scratch.unit_starts[i] = 0;
}

// Combines `state` with the state at `to`.
__device__ __forceinline__ void combine(bool is_maximum, uint32_t* to, uint32_t state) {
  if (!is_maximum) {
    if (state != 0) atomicAdd(to, state);
  } else if (*static_cast<volatile uint32_t*>(to) < state) {
    atomicMax(to, state);
  }
}

// Combines states of a key in device memory, and adds 1 to `found` if the key is new. `states(c)` is the state
// of column c. Returns false if it saw that some key finds no place.
template <int kColumns, typename Word, typename States>
__device__ __forceinline__ bool combine_far(const GroupTask<Word>& task, Word key, uint32_t& found, States states) {
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
      if (++probes % 4 == 0) {
        volatile uint32_t* const left_out = task.counters + kGroupsLeftOut;
        if (probes == kMaxFarProbes) *left_out = 1;
        if (*left_out != 0) return false;
      }
    }
    at = 1 + int64_t{place};
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) combine(task.is_maximum[c], task.states[c] + at, states(c));
  found += is_new;
  return true;
}

// ---- The partition

struct PartitionShared {
  alignas(16) uint32_t words[kPartitionTile];
  uint32_t counts[kGroupBuckets * kRankCopies + 1];
  uint32_t sums[kPartitionThreads / kWarp];
};

constexpr int kPastEnd = kGroupBuckets * kRankCopies;  // the counter of rows past the end

// Counts a tile's rows by bucket, and then turns each counter into the number of rows that earlier counters counted. A
// row's hash becomes the number of rows that its counter counted before it, plus the counter's number << 16.
template <int kItems, typename IsRow>
__device__ __forceinline__ void count_rows(PartitionShared& shared, uint32_t (&places)[kItems], IsRow is_row,
                                           int size) {
  constexpr int kOwn = kPastEnd / kPartitionThreads;
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    uint32_t counter = bucket_of(places[k]) * kRankCopies + thread % kRankCopies;
    keep(counter);
    if (!is_row(k)) counter = kPastEnd;
    places[k] = atomicAdd(shared.counts + counter, 1u) | counter << 16;
  }
  __syncthreads();
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) sum += shared.counts[thread * kOwn + i];
  uint32_t before = sum_block<kPartitionThreads / kWarp>(shared.sums, sum).before;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const uint32_t rows = shared.counts[thread * kOwn + i];
    shared.counts[thread * kOwn + i] = before;
    before += rows;
  }
  if (thread == 0) shared.counts[kPastEnd] = size;
  __syncthreads();
}

// Sorts a tile's rows by bucket, one block per tile. The order of a bucket's rows is not fixed.
// Rows past the end come last.
template <typename Word>
__global__ void __launch_bounds__(kPartitionThreads, kPartitionBlocks)
    partition_rows(const __grid_constant__ GroupTask<Word> task) {
  constexpr int kTile = kPartitionTile, kItems = kTile / kPartitionThreads;
  __shared__ PartitionShared shared;
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t first = int64_t{blockIdx.x} * kTile;
  const auto size = static_cast<int>(clamp<int64_t>(task.live() - first, 0, kTile)), rest = size - thread;
  if (size == 0) {
    wait_for_last_kernel();  // this kernel must not end before that one
    return;
  }
  const auto is_row = [&](int k) { return k * kPartitionThreads < rest; };
  for (int i = thread; i <= kPastEnd; i += kPartitionThreads) shared.counts[i] = 0;
  uint32_t words[kItems];   // of the column that moves next
  uint32_t places[kItems];  // at first the hashes
  const auto take = [&](int k, Word key) {
    words[k] = static_cast<uint32_t>(key);
    places[k] = hash_of(key);
  };
  if (task.has_pairs()) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) take(k, is_row(k) ? task.pair(first + thread + k * kPartitionThreads) : 0);
  } else {
#pragma unroll
    for (int k = 0; k < kItems; ++k) take(k, is_row(k) ? (task.keys + first + thread)[k * kPartitionThreads] : 0);
  }
  __syncthreads();
  count_rows(shared, places, is_row, size);
  wait_for_last_kernel();  // the units are zero
  start_next_kernel();
  const HashGroupsOperands::Scratch& scratch = task.scratch;
  if (thread < kGroupBuckets) {
    const uint32_t start = shared.counts[thread * kRankCopies];
    const uint32_t rows = shared.counts[(thread + 1) * kRankCopies] - start;
    scratch.runs[int64_t{thread} * scratch.tiles + blockIdx.x] = start | rows << 16;
    if (rows != 0) atomicAdd(scratch.unit_starts + thread * scratch.units + blockIdx.x / kUnitTiles, rows);
  }
#pragma unroll
  for (int k = 0; k < kItems; ++k) places[k] = (places[k] & 0xffff) + shared.counts[places[k] >> 16];
  // The next column is loaded before this one goes to device memory.
  const auto load = [&](const uint32_t* from, int step, uint32_t flip) {
#pragma unroll
    for (int k = 0; k < kItems; ++k)
      words[k] = is_row(k) ? (from + (first + thread) * step)[k * kPartitionThreads * step] ^ flip : 0;
  };
  const auto load_values = [&](int from) {
    for (int c = from; c < task.columns; ++c) {
      if (task.values[c]) return load(task.values[c], 1, 0);
    }
  };
  const auto move = [&](uint32_t* to, auto load_next) {
#pragma unroll
    for (int k = 0; k < kItems; ++k) shared.words[places[k]] = words[k];
    load_next();
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kItems; k += 4) {
      const int i = k * kPartitionThreads + 4 * thread;
      *reinterpret_cast<uint4*>(to + first + i) = *reinterpret_cast<const uint4*>(shared.words + i);
    }
    __syncthreads();
  };
  if constexpr (sizeof(Word) == 8) {
    move(scratch.keys[0], [&] {
      if (task.has_pairs()) {
        load(task.upper, 1, static_cast<uint32_t>(task.flip_of_pairs >> 32));
      } else {
        load(reinterpret_cast<const uint32_t*>(task.keys) + 1, 2, 0);
      }
    });
    move(scratch.keys[1], [&] { load_values(0); });
  } else {
    move(scratch.keys[0], [&] { load_values(0); });
  }
#pragma unroll
  for (int c = 0; c < kMaxGroupColumns; ++c) {
    if (c < task.columns && task.values[c]) move(scratch.values[c], [&] { load_values(c + 1); });
  }
}

// Turns the units' numbers of rows into the numbers of rows before them. One block; each warp has neighbouring units.
template <typename Word>
__global__ void __launch_bounds__(kStartThreads) start_units(const __grid_constant__ GroupTask<Word> task) {
  __shared__ uint32_t sums[kStartThreads / kWarp];
  wait_for_last_kernel();
  start_next_kernel();
  constexpr int kWarps = kStartThreads / kWarp, kBatch = 8;
  const int units = kGroupBuckets * task.scratch.units, share = ceil_div(units, kWarps * kWarp) * kWarp;
  uint32_t* const starts = task.scratch.unit_starts;
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const int begin = static_cast<int>(threadIdx.x) / kWarp * share + lane, end = minimum(begin - lane + share, units);
  uint32_t sum = 0;
#pragma unroll 8
  for (int i = begin; i < end; i += kWarp) sum += starts[i];
  auto [before, all] = sum_block<kWarps>(sums, sum);
  before = __shfl_sync(~0u, before, 0);
  for (int i = begin; i - lane < end; i += kBatch * kWarp) {
    uint32_t rows[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) rows[k] = i + k * kWarp < end ? starts[i + k * kWarp] : 0;
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      const uint32_t up_to = sum_up_to(rows[k]);
      if (i + k * kWarp < end) starts[i + k * kWarp] = before + up_to - rows[k];
      before += __shfl_sync(~0u, up_to, kWarp - 1);
    }
  }
  if (threadIdx.x == 0) starts[units] = all;
}

// ---- The block's table

// Rows of a unit that come from one tile. Row i of the unit is row `offset + i` (modulo 2^32) in scratch memory.
struct Piece {
  uint32_t first;
  uint32_t offset;
};

template <typename Word, int kColumns, int kEntries>
struct BlockTable {
  alignas(16) Word keys[kEntries];
  uint32_t states[kColumns][kEntries + 1];  // the last one is that of the key `empty`
  uint32_t has_empty_key;
  Piece pieces[kCombineThreads / kWarp][kUnitTiles];
};

// Combines rows in the block's table.
template <typename Word, int kColumns, int kEntries>
class RowCombiner {
 public:
  static constexpr int kItems = kGroupItems<Word>;
  static constexpr uint32_t kStep = kWarp * kItems;
  using Table = BlockTable<Word, kColumns, kEntries>;

  __device__ RowCombiner(const GroupTask<Word>& task, Table& table) : task_(task), table_(table) {}

  // Combines the caller's rows [begin, end). All threads of the block call it.
  __device__ void combine_rows(uint32_t begin, uint32_t end) {
    clear();
    combine(begin + threadIdx.x / kWarp * kStep, end, kCombineThreads / kWarp * kStep,
            [&](uint32_t first, uint32_t end, Rows& rows, int k) {
              const uint32_t i = minimum(first + lane(), end - 1);
              rows.keys[k] = task_.has_pairs() ? task_.pair(i) : task_.keys[i];
#pragma unroll
              for (int c = 0; c < kColumns; ++c) rows.values[c][k] = task_.values[c] ? task_.values[c][i] : 1;
            });
    flush();
  }

  // Combines the rows [begin, end), which are numbered through all buckets and lie in this one.
  __device__ void combine_bucket(int bucket, uint32_t begin, uint32_t end) {
    clear();
    constexpr uint32_t kWarps = kCombineThreads / kWarp;
    const uint32_t* const starts = task_.scratch.unit_starts;
    const uint32_t share = ceil_div(end - begin, kWarps);
    const uint32_t own_begin = minimum(begin + threadIdx.x / kWarp * share, end);
    const uint32_t own_end = minimum(own_begin + share, end);
    const int units = bucket * task_.scratch.units;
    int unit =
        warp_partition_point(units, units + task_.scratch.units, [&](int i) { return starts[i + 1] <= own_begin; });
    for (uint32_t row = own_begin; row < own_end && !is_left_out_; ++unit) {
      const uint32_t start = starts[unit], next = minimum(starts[unit + 1], own_end);
      if (row < next) combine_unit(bucket, unit - units, row - start, next - start);
      row = next;
    }
    flush();
  }

  // The number of groups that this thread was the first to find.
  __device__ uint32_t found() const { return found_; }

 private:
  struct Rows {
    Word keys[kItems];
    uint32_t values[kColumns][kItems];
  };
  struct Keys {
    alignas(16) Word keys[kGroupKeys];
  };

  __device__ static uint32_t lane() { return threadIdx.x % kWarp; }

  __device__ static unsigned or_lanes(unsigned bits) {
#if __CUDA_ARCH__ >= 800
    return __reduce_or_sync(~0u, bits);
#else
    return fold_warp(bits, [](unsigned a, unsigned b) { return a | b; });
#endif
  }

  __device__ __forceinline__ void clear() {
    for (int i = threadIdx.x; i < kEntries; i += kCombineThreads) {
      table_.keys[i] = task_.empty;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) table_.states[c][i] = 0;
    }
    if (threadIdx.x < kColumns) table_.states[threadIdx.x][kEntries] = 0;
    if (threadIdx.x == 0) table_.has_empty_key = 0;
    __syncthreads();
  }

  // Combines the table with that in device memory.
  __device__ __forceinline__ void flush() {
    __syncthreads();
    for (int i = threadIdx.x; i < kEntries; i += kCombineThreads) {
      if (table_.keys[i] != task_.empty) flush(table_.keys[i], i);
    }
    if (threadIdx.x == 0 && table_.has_empty_key != 0) flush(task_.empty, kEntries);
    __syncthreads();
  }
  __device__ __forceinline__ void flush(Word key, int entry) {
    combine_far<kColumns>(task_, key, found_, [&](int c) { return table_.states[c][entry]; });
  }

  // Combines the rows [begin, end) of a unit, counted in the unit.
  __device__ __forceinline__ void combine_unit(int bucket, int unit, uint32_t begin, uint32_t end) {
    const HashGroupsOperands::Scratch& scratch = task_.scratch;
    const int tile = unit * kUnitTiles + static_cast<int>(lane());
    const uint32_t run =
        int64_t{tile} * kPartitionTile < task_.live() ? scratch.runs[int64_t{bucket} * scratch.tiles + tile] : 0;
    const uint32_t rows = run >> 16, first = sum_up_to(rows) - rows;
    // The first lanes get the pieces that have rows.
    Piece* const pieces = table_.pieces[threadIdx.x / kWarp];
    const unsigned used = __ballot_sync(~0u, rows != 0);
    __syncwarp();
    if (rows != 0)
      pieces[__popc(used & ((1u << lane()) - 1))] = {first, tile * kPartitionTile + (run & 0xffff) - first};
    __syncwarp();
    const Piece piece = static_cast<int>(lane()) < __popc(used) ? pieces[lane()] : Piece{~0u, 0};
    combine(begin, end, kStep, [&](uint32_t from, uint32_t end, Rows& rows, int k) {
      const uint32_t ahead = piece.first - from - 1;
      const unsigned begins = or_lanes(ahead < kWarp - 1 ? 2u << ahead : 0);
      const int before = __popc(__ballot_sync(~0u, piece.first <= from)) - 1;
      const int own = before + __popc(begins & ((2u << lane()) - 1));
      const uint32_t i = __shfl_sync(~0u, piece.offset, own) + minimum(from + lane(), end - 1);
      if constexpr (sizeof(Word) == 8) {
        rows.keys[k] = scratch.keys[0][i] | Word{scratch.keys[1][i]} << 32;
      } else {
        rows.keys[k] = scratch.keys[0][i];
      }
#pragma unroll
      for (int c = 0; c < kColumns; ++c) rows.values[c][k] = scratch.values[c] ? scratch.values[c][i] : 1;
    });
  }

  // A warp takes kStep rows from `first` on, then kStep rows `step` later, and so on, up to `end`.
  // `load(begin, end, rows, k)` loads item k of each lane: lane l gets row min(`begin` + l, `end` - 1).
  template <typename Load>
  __device__ __forceinline__ void combine(uint32_t first, uint32_t end, uint32_t step, Load load) {
    const auto load_step = [&](uint32_t first, Rows& rows) {
#pragma unroll
      for (int k = 0; k < kItems; ++k) {
        if (first + k * kWarp < end) load(first + k * kWarp, end, rows, k);
      }
    };
    Rows next;
    load_step(first, next);
#pragma unroll 1
    for (; first < end; first += step) {
      Rows rows = next;
      load_step(first + step, next);
      combine_loaded(rows, first, end);
      is_left_out_ = __any_sync(~0u, is_left_out_);
      if (is_left_out_) return;
    }
  }

  __device__ __forceinline__ Keys keys_at(int entry) const {
    return *reinterpret_cast<const Keys*>(table_.keys + entry);
  }
  __device__ __forceinline__ static int first_entry(Word key) {
    return static_cast<int>(hash_of(key) & (kEntries / kGroupKeys - 1)) * kGroupKeys;
  }

  __device__ __forceinline__ void combine_loaded(const Rows& rows, uint32_t first, uint32_t end) {
    int entries[kItems];
    Keys owners[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k) owners[k] = keys_at(first_entry(rows.keys[k]));
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const Word key = rows.keys[k];
      entries[k] = kNoEntry;
      if (first + k * kWarp + lane() >= end) continue;
      int entry = first_entry(key);
      entries[k] = entry_of(owners[k], key, entry);
      if (entries[k] == kNoEntry) {
        entry = (entry + kGroupKeys) & (kEntries - 1);
        entries[k] = entry_of(keys_at(entry), key, entry);
      }
      if (entries[k] != kNoEntry && key != task_.empty) continue;
      entries[k] = find_entry(key);
      if (entries[k] == kNoEntry)
        is_left_out_ |= !combine_far<kColumns>(task_, key, found_, [&](int c) { return coded(c, rows.values[c][k]); });
    }
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const bool alike = __all_sync(~0u, entries[k] == __shfl_sync(~0u, entries[k], 0));
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        uint32_t state = coded(c, rows.values[c][k]);
        bool is_used = entries[k] != kNoEntry;
        if (alike && !task_.is_maximum[c]) {
          state = fold_warp(state, [](uint32_t a, uint32_t b) { return a + b; });
          is_used &= lane() == 0;
        }
        if (is_used) hash_grouping::combine(task_.is_maximum[c], table_.states[c] + entries[k], state);
      }
    }
  }

  __device__ __forceinline__ static int entry_of(const Keys& owners, Word key, int entry) {
    int found = kNoEntry;
#pragma unroll
    for (int i = 0; i < kGroupKeys; ++i) {
      if (owners.keys[i] == key) found = entry + i;
    }
    return found;
  }

  __device__ __forceinline__ int find_entry(Word key) {
    if (key == task_.empty) {
      table_.has_empty_key = 1;
      return kEntries;
    }
    int entry = first_entry(key);
#pragma unroll 1
    for (int probes = 0; probes < kMaxProbes; ++probes) {
      const Keys owners = keys_at(entry);
#pragma unroll
      for (int i = 0; i < kGroupKeys; ++i) {
        Word owner = owners.keys[i];
        if (owner == task_.empty) owner = claim(table_.keys + entry + i, task_.empty, key);
        if (owner == task_.empty || owner == key) return entry + i;
      }
      entry = (entry + kGroupKeys) & (kEntries - 1);
    }
    return kNoEntry;
  }

  __device__ __forceinline__ uint32_t coded(int c, uint32_t value) const { return value ^ task_.flips[c]; }

  const GroupTask<Word>& task_;
  Table& table_;
  uint32_t found_ = 0;
  bool is_left_out_ = false;
};

// Combines the live rows. A block takes a range of them.
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
    const auto end_of = [&](int bucket) { return task.scratch.unit_starts[(bucket + 1) * task.scratch.units]; };
    int bucket = partition_point(0, kGroupBuckets, [&](int i) { return end_of(i) <= begin; });
    for (uint32_t from = begin; from < end; ++bucket) {
      const uint32_t to = minimum(end_of(bucket), end);
      if (from < to) combiner.combine_bucket(bucket, from, to);
      from = to;
    }
  }
  const uint32_t found = fold_warp(combiner.found(), [](uint32_t a, uint32_t b) { return a + b; });
  if (threadIdx.x % kWarp == 0 && found != 0) atomicAdd(task.counters + kGroupsFound, found);
}

}  // namespace mgpu::cuda::hash_grouping
