// Finds the merges that a nearly sorted row still needs once its cells are sorted. A phase sorts groups of 16 cells; a
// group is a cell of the next phase. A cell is cut if no item of the group's earlier cells is greater than any item of
// its later cells. Then the cell's items between the largest earlier and the smallest later item are in place, and the
// items between two cuts are a segment to merge.
#pragma once

#include "algorithm/partition_points.h"
#include "cuda/ptx.cuh"
#include "ops/segmented_sort/row_problem.cuh"

namespace mgpu::cuda::sorting {

// Before and after a phase, all items are in the output.
struct Phase {
  // These are zeroed before the first phase.
  struct Counts {
    int tiles[kPhaseRounds];
    int groups;
    int short_groups;  // listed backwards from the end of Phase::groups
    int copies;        // whether any segment starts in buffers[1]
  };

  int64_t cell_width;
  int64_t row_cells;
  int cell_tiles_shift;  // a cell has 1 << cell_tiles_shift tiles
  bool last;             // the last phase, in which codes become keys
  CellCut* cuts;
  RunGroup* groups;
  GroupTile* group_tiles[kPhaseRounds];
  Counts* counts;
};

template <typename T>
__device__ __forceinline__ T from_cell(T value, int from) {
  return static_cast<T>(__shfl_sync(0xffffffffu, value, from, kGroupCells));
}

// `before` becomes the largest item before the cell, `after` the smallest after it.
template <typename Word>
__device__ __forceinline__ void spread_bounds(Word& before, Word& after, int own) {
#pragma unroll
  for (int distance = 1; distance < kGroupCells; distance *= 2) {
    const Word below = from_cell(before, maximum(own - distance, 0));
    const Word above = from_cell(after, minimum(own + distance, kGroupCells - 1));
    before = maximum(before, below);
    after = minimum(after, above);
  }
  before = from_cell(before, maximum(own - 1, 0));
  after = from_cell(after, minimum(own + 1, kGroupCells - 1));
  if (own == 0) before = 0;
  if (own == kGroupCells - 1) after = static_cast<Word>(~Word{0});
}

template <typename Visit>
__device__ __forceinline__ void for_groups(int64_t first_cell, int64_t width, int own, int last, int rounds,
                                           Range<int64_t> segment, Visit visit) {
  const int64_t begin_cell = first_cell + own;
  if (rounds == 2) {
    for (int quad = own; quad <= last; quad += kRuns) {
      visit(0, merge_group<int64_t>(segment, begin_cell, width, first_cell + quad, 0));
    }
  }
  visit(rounds - 1, merge_group<int64_t>(segment, begin_cell, width, begin_cell, rounds - 1));
}

// Returns the lane's first place. Places are in the order of the lanes.
__device__ __forceinline__ int claim_places(int count, int* counter, int lane) {
  constexpr unsigned kAll = 0xffffffffu;
  int sum = count;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int below = __shfl_up_sync(kAll, sum, distance);
    if (lane >= distance) sum += below;
  }
  int base = 0;
  if (lane == kWarp - 1 && sum > 0) base = atomicAdd(counter, sum);
  return __shfl_sync(kAll, base, kWarp - 1) + sum - count;
}

// Finds the cuts of a group of cells, and lists the segments between them. One warp has a group, and each half of the
// warp has a lane per cell.
template <typename P>
__global__ void __launch_bounds__(128)
    cut_cells(const __grid_constant__ P problem, const __grid_constant__ Phase phase) {
  using Word = typename P::Word;
  wait_for_last_kernel();
  if (problem.disorder.is_large()) return;
  constexpr unsigned kAll = 0xffffffffu;
  constexpr Word kGreatest = static_cast<Word>(~Word{0});
  const int64_t width = phase.cell_width;
  const int64_t row_groups = ceil_div<int64_t>(phase.row_cells, kGroupCells);
  const int64_t index = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  if (index >= problem.segments.rows * row_groups) return;
  const int64_t row_index = index / row_groups;
  const LiveRow row = problem.row(row_index);
  const int64_t first_cell = (index - row_index * row_groups) * kGroupCells;
  const Word* const codes = problem.buffers[0].keys + row.begin;
  const auto rank = [&](int64_t position) { return problem.order.rank(codes[position]); };

  const int lane = threadIdx.x % kWarp;
  const int own = lane % kGroupCells;
  const int64_t cell = first_cell + own;
  const Range<int64_t> items{minimum(cell * width, row.live), minimum((cell + 1) * width, row.live)};
  const bool empty = items.size() == 0;
  Word before = empty ? Word{0} : rank(items.end - 1);
  Word after = empty ? kGreatest : rank(items.begin);
  spread_bounds(before, after, own);
  const unsigned cuts = __ballot_sync(kAll, before <= after) & ((1u << kGroupCells) - 1);
  const bool is_cut = cuts >> own & 1;

  const bool finds_end = lane >= kGroupCells;
  const Range<int64_t> searched = is_cut ? items : Range<int64_t>{items.end, items.end};
  constexpr int kProbes = 15;
  const int64_t found = wide_partition_point<kProbes>(
      searched.begin, searched.end, rank, [&](Word item) { return finds_end ? item < before : !(after < item); });
  const int64_t low = __shfl_sync(kAll, found, kGroupCells + own);
  const int64_t high = __shfl_sync(kAll, found, own);

  // The cell in which the lane's segment ends, its rounds, and the buffer in which they start.
  const unsigned later = cuts & ~((2u << own) - 1);
  const unsigned earlier = cuts & ((1u << own) - 1);
  const int last = later ? __ffs(later) - 1 : own;
  const Range<int64_t> segment{high, from_cell(low, last)};
  const bool begins = !finds_end && is_cut && later && segment.size() > 0;
  const int rounds = last - own + 1 > kRuns ? 2 : 1;
  // A segment of one round that fits a warp or, without payload, a tile
  // is merged in place: all of it is read before any of it is written.
  const bool is_short = begins && rounds == 1 && segment.size() <= kShortItems;
  const bool in_place = is_short || (!P::kHasPayload && rounds == 1 && segment.size() <= P::kTile);
  const int start = in_place ? 0 : rounds & 1;
  const int left_start = from_cell(start, earlier ? 31 - __clz(earlier) : 0);
  if (!finds_end && cell < phase.row_cells) {
    phase.cuts[row_index * phase.row_cells + cell] = {low, high, left_start, start};
  }
  if (__any_sync(kAll, begins && start != 0) && lane == 0) phase.counts->copies = 1;

  const auto tiles_of = [](const MergeGroup<int64_t>& runs) {
    return static_cast<int>(ceil_div<int64_t>(runs.end() - runs.begin(), P::kTile));
  };
  int groups = 0, first_tiles = 0, second_tiles = 0;
  if (begins && !is_short) {
    for_groups(first_cell, width, own, last, rounds, segment, [&](int round, const MergeGroup<int64_t>& runs) {
      ++groups;
      (round == 0 ? first_tiles : second_tiles) += tiles_of(runs);
    });
  }
  const int group_place = claim_places(groups, &phase.counts->groups, lane);
  const int first_place = claim_places(first_tiles, &phase.counts->tiles[0], lane);
  const int second_place = claim_places(second_tiles, &phase.counts->tiles[1], lane);
  const int short_place = claim_places(is_short, &phase.counts->short_groups, lane);
  if (is_short) {
    const auto runs = merge_group<int64_t>(segment, first_cell + own, width, first_cell + own, 0);
    phase.groups[problem.most_groups() - 1 - short_place] = {runs, row.begin, 0, 0, phase.last};
  }
  // All lanes together list the tiles of each segment in turn.
  for (unsigned segments = __ballot_sync(kAll, begins && !is_short); segments; segments &= segments - 1) {
    const int at = __ffs(segments) - 1;
    const auto its = [&](auto value) { return __shfl_sync(kAll, value, at); };
    int group = its(group_place);
    GroupTile* first_round = phase.group_tiles[0] + its(first_place);
    GroupTile* second_round = phase.group_tiles[1] + its(second_place);
    const Range<int64_t> its_segment{its(segment.begin), its(segment.end)};
    const int its_rounds = its(rounds);
    const int its_start = its(start);
    for_groups(first_cell, width, at, its(last), its_rounds, its_segment,
               [&](int round, const MergeGroup<int64_t>& runs) {
                 const bool ends = round + 1 == its_rounds;
                 const int source = round == 0 ? its_start : 1;
                 if (lane == 0) phase.groups[group] = {runs, row.begin, source, ends ? 0 : 1, ends && phase.last};
                 GroupTile*& to = round == 0 ? first_round : second_round;
                 const int count = tiles_of(runs);
                 for (int tile = lane; tile < count; tile += kWarp) to[tile] = {group, tile};
                 to += count;
                 ++group;
               });
  }
}

constexpr int kStartThreads = 256;

// If `decodes`, items in place become keys.
template <typename P>
__device__ void start_tile(const P& problem, const Phase& phase, int64_t tile, bool decodes) {
  const int64_t row_index = problem.segments.rows == 1 ? 0 : tile / problem.row_tiles;
  const LiveRow row = problem.row(row_index);
  const int64_t row_tile = tile - row_index * problem.row_tiles;
  const int64_t first = row_tile * P::kTile;
  const int64_t end = minimum<int64_t>(first + P::kTile, row.live);
  if (first >= end) return;
  const CellCut cut = phase.cuts[row_index * phase.row_cells + (row_tile >> phase.cell_tiles_shift)];
  const auto copy = [&](int64_t begin, int64_t end, const auto* source, auto* target, auto change) {
    constexpr int kBatch = 8;
    for (int64_t at = row.begin + begin + threadIdx.x; at < row.begin + end; at += kBatch * kStartThreads) {
      std::remove_cvref_t<decltype(*source)> items[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (at + i * kStartThreads < row.begin + end) items[i] = source[at + i * kStartThreads];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (at + i * kStartThreads < row.begin + end) target[at + i * kStartThreads] = change(items[i]);
      }
    }
  };
  const auto same = [](auto item) { return item; };
  const auto bring = [&](int start, int64_t begin, int64_t end) {
    if (start == 0) return;
    copy(begin, end, problem.buffers[0].keys, problem.buffers[start].keys, same);
    if constexpr (P::kHasPayload) copy(begin, end, problem.buffers[0].payload, problem.buffers[start].payload, same);
  };
  const int64_t low = clamp(cut.low, first, end);
  const int64_t high = clamp(cut.high, first, end);
  bring(cut.left_start, first, low);
  bring(cut.right_start, high, end);
  if (decodes) {
    auto* const keys = problem.buffers[0].keys;
    copy(low, high, keys, keys, [&](auto code) { return problem.order.decode(code); });
  }
}

// Copies the segments whose rounds start in buffers[1] to that buffer. In the last
// phase, items in place are decoded to keys, unless codes have the bits of keys.
template <typename P>
__global__ void __launch_bounds__(kStartThreads)
    start_segments(const __grid_constant__ P problem, const __grid_constant__ Phase phase) {
  const bool decodes = phase.last && !problem.order.keeps_bits();
  wait_for_last_kernel();
  if ((phase.counts->copies == 0 && !decodes) || problem.disorder.is_large()) return;
  const int64_t tiles = problem.segments.rows * problem.row_tiles;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) start_tile(problem, phase, tile, decodes);
}

}  // namespace mgpu::cuda::sorting
