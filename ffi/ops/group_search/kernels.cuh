// The walk along the rows of both sides is cut into parts, one per block. A block's table has the last row of b of each
// group. With several parts, find_lasts finds these rows within each part, and bring_lasts_on those before each part.
// In search_parts, a block walks its part in tiles.
//
// Within a tile, all rows of b enter the table, one window of 32 rows at a time, before rows of a read it. So a row
// of a may find a row of b after its cut, and steps back: a row of b keeps a mask of the rows of its group in its
// window, and the last row of its group before the window.
#pragma once

#include "algorithm/segments.h"
#include "cuda/block/partition.cuh"
#include "cuda/ptx.cuh"
#include "ops/group_search/plan.h"

namespace mgpu::cuda::group_searching {

constexpr int kThreads = kGroupSearchShape.threads;
constexpr int kItems = kGroupSearchShape.items;
constexpr int kTile = kGroupSearchShape.tile();
constexpr int kTableBytes = kGroupTable * sizeof(int32_t);
constexpr int kSearchBytes = kTableBytes + kTile * (sizeof(int32_t) + sizeof(unsigned));
constexpr int kSpreadGroups = kWarp;  // the groups of a block of bring_lasts_on
constexpr int kSpreadWarps = 32;
static_assert(kTile % kWarp == 0 && kThreads % kWarp == 0);

// Entries of a block's table: positions in b relative to the part's first row.
constexpr int32_t kNone = static_cast<int32_t>(0x80000000u);  // no row
constexpr int32_t kFar = kNone + 1;                           // a row too far before the part for 32 bits
constexpr uint32_t kNoGroup = ~uint32_t{0};

struct GroupSearchTask {
  GroupSearchOperands operands;
  int64_t parts;
  GroupSearchOperands::Scratch scratch;

  template <typename Index>
  __device__ Index* lasts(int64_t block) const {
    return static_cast<Index*>(scratch.lasts) + block * kGroupTable;
  }
};

// If cuts are not sorted, `a` may end before it begins (no rows), and parts may overlap.
struct WalkPart {
  Range<int64_t> a;
  Range<int64_t> b;

  // `a` has the numbers of a's rows before the part and before the next one.
  template <typename Walk>
  __device__ WalkPart(const GroupSearchTask& task, const Walk& walk, int64_t part, Range<int64_t> a)
      : a(a), b{first_slot(task, walk, part) - a.begin, first_slot(task, walk, part + 1) - a.end} {
    constexpr int64_t kMaxRows = int64_t{1} << 30;  // more occur only if cuts are not sorted
    this->a.end = minimum(a.end, a.begin + kMaxRows);
    b.end = minimum(b.end, b.begin + kMaxRows);
  }

  template <typename Walk>
  __device__ static int64_t first_slot(const GroupSearchTask& task, const Walk& walk, int64_t part) {
    return minimum(part * ceil_div(walk.slots(), task.parts), walk.slots());
  }
};

template <typename Index, bool kForward>
__global__ void __launch_bounds__(kGroupLastsThreads) find_lasts(const __grid_constant__ GroupSearchTask task) {
  start_next_kernel();
  extern __shared__ __align__(16) int32_t table[];
  constexpr int kInFlight = 8;
  const int64_t problem = blockIdx.x / task.parts;
  const int64_t part_number = blockIdx.x - problem * task.parts;
  const auto walk = task.operands.walk<Index, kForward>(problem);
  for (int group = threadIdx.x; group < walk.groups; group += kGroupLastsThreads) table[group] = kNone;
  constexpr int kLanes = kWarp / 2;
  const int half = static_cast<int>(threadIdx.x) % kWarp / kLanes;
  const int64_t split =
      walk.split(WalkPart::first_slot(task, walk, part_number + half),
                 [](auto begin, auto end, auto before) { return warp_partition_point<kLanes>(begin, end, before); });
  const int64_t begin = __shfl_sync(~0u, split, 0);
  const int64_t end = __shfl_sync(~0u, split, kLanes);
  const WalkPart part(task, walk, part_number, {begin, end});
  if (threadIdx.x == 0) task.scratch.splits[blockIdx.x] = begin;
  __syncthreads();

  // Rows go from last to first, so that fewer of them change the table.
  const auto last_place = static_cast<int32_t>(part.b.size()) - 1 - static_cast<int>(threadIdx.x);
  const uint32_t* const words = walk.b_groups + walk.b_row(part.b.begin);
  for (int32_t first = last_place; first >= 0; first -= kInFlight * kGroupLastsThreads) {
    uint32_t groups[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int32_t place = first - k * kGroupLastsThreads;
      groups[k] = place >= 0 ? walk.group(words[walk.kStep * int64_t{place}]) : kNoGroup;
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int32_t place = first - k * kGroupLastsThreads;
      if (groups[k] >= walk.groups) continue;
      int32_t* const entry = table + groups[k];
      if (*static_cast<const volatile int32_t*>(entry) < place) atomicMax(entry, place);
    }
  }
  __syncthreads();
  Index* const lasts = task.lasts<Index>(blockIdx.x);
  for (int group = threadIdx.x; group < walk.groups; group += kGroupLastsThreads) {
    lasts[group] = table[group] == kNone ? Index{-1} : static_cast<Index>(part.b.begin + table[group]);
  }
}

// Replaces the last rows within each part by the last rows before it.
// A lane has a group, and a warp has a sequence of parts.
template <typename Index>
__global__ void __launch_bounds__(kWarp* kSpreadWarps) bring_lasts_on(const __grid_constant__ GroupSearchTask task) {
  wait_for_last_kernel();
  start_next_kernel();
  __shared__ Index warp_lasts[kSpreadWarps][kWarp];
  const int64_t problem = blockIdx.y;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int group = blockIdx.x * kSpreadGroups + lane;
  const bool is_group = group < static_cast<int>(task.operands.groups(problem));
  const int64_t run = ceil_div<int64_t>(task.parts, kSpreadWarps);
  const int64_t begin = minimum(warp * run, task.parts);
  const int64_t end = minimum(begin + run, task.parts);
  Index* const lasts = task.lasts<Index>(problem * task.parts) + group;
  Index last = -1;
#pragma unroll 8
  for (int64_t part = begin; part < end; ++part) {
    if (is_group) last = maximum(last, lasts[part * kGroupTable]);
  }
  warp_lasts[warp][lane] = last;
  __syncthreads();
  Index before = -1;
  for (int earlier = 0; earlier < warp; ++earlier) before = maximum(before, warp_lasts[earlier][lane]);
#pragma unroll 8
  for (int64_t part = begin; part < end; ++part) {
    if (!is_group) break;
    const Index own = lasts[part * kGroupTable];
    lasts[part * kGroupTable] = before;
    before = maximum(before, own);
  }
}

// A thread's items of a column are kThreads rows apart.
template <typename Item>
struct TileColumn {
  Item items[kItems];

  template <int kStep>
  __device__ __forceinline__ void load(const Item* rows, int count, Item rest) {
    const Item* const own = rows + kStep * static_cast<int>(threadIdx.x);
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      items[k] = k * kThreads + static_cast<int>(threadIdx.x) < count ? own[kStep * k * kThreads] : rest;
    }
  }
};

// The number of the warp's rows of a in the next tile of `slots` slots, whose first row of b is `b_row`.
template <typename Walk, typename Index>
__device__ __forceinline__ int warp_rows_before(const Walk& walk, const TileColumn<Index>& cuts, int a_count,
                                                int64_t b_row, int slots) {
  int rows = 0;
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int i = k * kThreads + static_cast<int>(threadIdx.x);
    const bool is_in = i < a_count && walk.along(cuts.items[k], b_row) < slots - i;
    rows += __popc(__ballot_sync(~0u, is_in));
  }
  return rows;
}

// Writes the group of each of a tile's rows of b,
// and the mask of the rows of this group in its window.
template <typename Walk>
__device__ __forceinline__ void compare_groups(const Walk& walk, const TileColumn<uint32_t>& words, int b_count,
                                               int32_t* entries, unsigned* alike) {
  const auto thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int k = 0; k < kItems; ++k) {
    const int place = k * kThreads + thread;
    if (place - thread % kWarp >= b_count) continue;
    const uint32_t group = place < b_count ? walk.group(words.items[k]) : kNoGroup;
    entries[place] = static_cast<int32_t>(group);
    alike[place] = __match_any_sync(~0u, group);
  }
}

// One warp takes one window after the other. `b` is the tile's first row in the part.
template <typename Walk>
__device__ __forceinline__ void enter_rows(const Walk& walk, int32_t* table, int32_t* entries, const unsigned* alike,
                                           int lane, int b, int b_count) {
  auto group = static_cast<uint32_t>(entries[lane]);
  unsigned mates = alike[lane];
  for (int window = 0; window < b_count; window += kWarp) {
    const int place = window + lane;
    uint32_t next_group = kNoGroup;
    unsigned next_mates = 0;
    if (window + kWarp < b_count) {
      next_group = static_cast<uint32_t>(entries[place + kWarp]);
      next_mates = alike[place + kWarp];
    }
    const bool is_row = group < walk.groups;
    const int32_t last = is_row ? table[group] : kNone;
    __syncwarp();
    if (is_row && mates >> lane == 1) table[group] = b + place;
    entries[place] = last;
    __syncwarp();
    group = next_group;
    mates = next_mates;
  }
}

// `b` is the tile's first row of b; `last` becomes the group's last row before row `cut` of the tile.
__device__ __forceinline__ void step_back(int32_t& last, int b, int cut, const int32_t* entries,
                                          const unsigned* alike) {
  while (last >= b + cut) {
    const int place = last - b;
    const int window = place / kWarp * kWarp;
    const unsigned before = cut > window ? alike[place] & ((1u << (cut - window)) - 1) : 0;
    if (before != 0) {
      last = b + window + kWarp - 1 - __clz(static_cast<int>(before));
      break;
    }
    last = entries[place];
  }
}

// One block per part.
template <typename Index, bool kForward>
__global__ void __launch_bounds__(kThreads, kGroupSearchBlocks)
    search_parts(const __grid_constant__ GroupSearchTask task) {
  wait_for_last_kernel();
  extern __shared__ __align__(16) int32_t table[];
  int32_t* const entries =
      table + kGroupTable;  // for a tile's rows of b: the group, then the last row before the window
  unsigned* const alike = reinterpret_cast<unsigned*>(entries + kTile);  // per row of b: its group's rows in its window
  __shared__ int taken;                                                  // rows of a in the next tile

  constexpr int kStep = kForward ? -1 : 1;
  const int64_t problem = blockIdx.x / task.parts;
  const int64_t part_number = blockIdx.x - problem * task.parts;
  const auto walk = task.operands.walk<Index, kForward>(problem);
  const bool is_last = part_number + 1 == task.parts;
  const int64_t* const splits = task.scratch.splits + blockIdx.x;
  const WalkPart part(task, walk, part_number, {part_number == 0 ? 0 : splits[0], is_last ? walk.a_live : splits[1]});
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;

  for (int group = thread; group < walk.groups; group += kThreads) {
    const Index last = task.parts > 1 ? task.lasts<Index>(blockIdx.x)[group] : Index{-1};
    const int64_t place = last - part.b.begin;
    const bool is_before = last >= 0 && place < 0;  // true of each row found, if cuts are sorted
    table[group] = !is_before ? kNone : place <= kFar && sizeof(Index) == 8 ? kFar : static_cast<int32_t>(place);
  }
  if (thread == 0) taken = 0;
  for (int64_t i = walk.a_live + part_number * kThreads + thread; i < task.operands.a_length;
       i += task.parts * kThreads) {
    walk.positions[i] = -1;
  }
  __syncthreads();

  const int a_size = maximum(static_cast<int>(part.a.size()), 0);
  const int b_size = maximum(static_cast<int>(part.b.size()), 0);
  const Index* const part_cuts = walk.cuts + walk.a_row(part.a.begin);
  const uint32_t* const part_a_words = walk.a_groups + walk.a_row(part.a.begin);
  const uint32_t* const part_b_words = walk.b_groups + walk.b_row(part.b.begin);
  Index* const part_positions = walk.positions + walk.a_row(part.a.begin) + kStep * thread;
  const auto first_row = static_cast<Index>(walk.b_row(part.b.begin));
  int a = 0, b = 0;
  int a_count = 0, b_count = 0;
  TileColumn<Index> cuts, next_cuts, later_cuts;
  TileColumn<uint32_t> a_words, next_a_words, next_b_words;
  next_cuts.template load<kStep>(part_cuts, a_size, 0);
  for (;;) {
    const int next_a = a + a_count;
    const int next_b = b + b_count;
    const int a_left = minimum(a_size - next_a, kTile);
    const int b_left = minimum(b_size - next_b, kTile);
    const int slots = minimum(a_left + b_left, kTile);
    const int warp_taken = warp_rows_before(walk, next_cuts, a_left, part.b.begin + next_b, slots);
    if (lane == 0) atomicAdd(&taken, warp_taken);
    __syncthreads();
    const int next_a_count = clamp(taken, slots - minimum(b_left, slots), minimum(a_left, slots));
    const int next_b_count = slots - next_a_count;
    const int later_a = next_a + next_a_count;
    later_cuts.template load<kStep>(part_cuts + kStep * later_a, a_size - later_a, 0);
    next_a_words.template load<kStep>(part_a_words + kStep * next_a, next_a_count, 0);
    next_b_words.template load<kStep>(part_b_words + kStep * next_b, next_b_count, 0);

    if (thread < kWarp && b_count > 0) enter_rows(walk, table, entries, alike, lane, b, b_count);
    __syncthreads();

    if (thread == 0) taken = 0;
    Index* const positions = part_positions + kStep * a;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      if (k * kThreads + thread >= a_count) continue;
      const uint32_t group = walk.group(a_words.items[k]);
      int32_t last = group < walk.groups ? table[group] : kNone;
      const auto cut = static_cast<int>(clamp<Index>(walk.along(cuts.items[k], part.b.begin + b), 0, b_count));
      step_back(last, b, cut, entries, alike);
      Index found = last == kNone ? Index{-1} : first_row + kStep * static_cast<Index>(last);
      if (sizeof(Index) == 8 && last == kFar) {
        found = static_cast<Index>(walk.b_row(task.lasts<Index>(blockIdx.x)[group]));
      }
      positions[kStep * k * kThreads] = found;
    }
    if (slots == 0) break;
    __syncthreads();

    a = next_a;
    b = next_b;
    a_count = next_a_count;
    b_count = next_b_count;
    cuts = next_cuts;
    next_cuts = later_cuts;
    a_words = next_a_words;
    compare_groups(walk, next_b_words, b_count, entries, alike);
  }
}

}  // namespace mgpu::cuda::group_searching
