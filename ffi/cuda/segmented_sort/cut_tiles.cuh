// What a nearly sorted array still has to merge once its tiles are sorted: the overlaps of neighbouring cells. A phase
// takes cells of sorted tiles, 16 to a group, and sorts each group. Where no item of the group's earlier cells is
// greater than any of its later ones, a cell is cut: its items between the greatest earlier and the least later one are
// in their place. What lies between two cuts is a segment to merge in one or two rounds of four runs.
#pragma once

#include "cuda/segmented_sort/describe_tiles.cuh"
#include "cuda/segmented_sort/problem.cuh"

namespace mgpu::cuda::sorting {

constexpr int kPhaseRounds = 2;
constexpr int kGroupCells = 1 << (2 * kPhaseRounds);
constexpr int kMostPhases = 10;

// What the kernels of all phases tell each other, zeroed before the first.
struct Phases {
  int home[kMostPhases];    // the buffer in which all items lie before the phase
  int rounds[kMostPhases];  // the most rounds that a segment takes
  int odd[kMostPhases];     // about how many items take one round
};
constexpr int kCountedTiles = 16;  // one in so many is asked for `odd`

// The tiles start in the buffer from which an array in no order needs no copy, if neighbouring tiles overlap by more
// than a quarter, or else in the output. By a sample: one block, a warp an edge.
template <typename Order, typename Payload>
__global__ void __launch_bounds__(1024)
    choose_home(const __grid_constant__ Problem<Order, Payload> problem, int most_rounds, int* home) {
  using P = Problem<Order, Payload>;
  using Word = typename Order::Word;
  constexpr int kEdges = 4;
  constexpr int kWarps = 1024 / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int64_t samples = clamp<int64_t>(problem.total / P::kTile - 1, 0, kEdges * kWarps);
  int overlap = 0;
  for (int edge = warp; edge < samples; edge += kWarps) {
    const int64_t tile = 1 + (problem.total / P::kTile - 1) * edge / samples;
    const Word* const keys = problem.input.keys + tile * P::kTile;
    const auto rank = [&](Word key) { return problem.order.rank(problem.order.encode(key)); };
    const int at = lane * (P::kTile / kWarp);
    const Word left = rank(keys[at - P::kTile]);
    const Word right = rank(keys[at]);
    Word greatest = left, least = right;
#pragma unroll
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      greatest = maximum(greatest, static_cast<Word>(__shfl_xor_sync(0xffffffffu, greatest, distance)));
      least = minimum(least, static_cast<Word>(__shfl_xor_sync(0xffffffffu, least, distance)));
    }
    overlap += __popc(__ballot_sync(0xffffffffu, left > least)) + __popc(__ballot_sync(0xffffffffu, right < greatest));
  }
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  if (lane == 0) atomicAdd(&sum, overlap);
  __syncthreads();
  if (threadIdx.x == 0) *home = 4 * sum > samples * 2 * kWarp ? most_rounds % 2 : 0;
}

// All tiles start in one buffer, as codes; a single tile is sorted to the output.
static __global__ void describe_rows(Segments segments, int64_t tiles, int tile_width, const int* home,
                                     TileDescriptor* descriptors) {
  const int64_t tile = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (tile > tiles) return;
  const auto find = [](int64_t begin, int64_t end, auto before) { return partition_point(begin, end, before); };
  const int rounds = tiles == 1 ? 0 : 2 - *home;
  descriptors[tile] = {{0, kNowhere}, segments.listed_from(tile * tile_width, find), 0, rounds};
}

// A warp a tile: the segment to merge that the tile's first position lies in, in this phase. Its rounds are counted
// from the first round of the sort, in which runs are tiles.
template <typename Order, typename Payload>
__global__ void cut_tiles(const __grid_constant__ Problem<Order, Payload> problem, int phase, Phases* phases) {
  using P = Problem<Order, Payload>;
  using Word = typename Order::Word;
  const int64_t tile = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / kWarp;
  if (tile > problem.tiles) return;
  const int64_t cell_tiles = int64_t{1} << (2 * kPhaseRounds * phase);
  const int64_t cell = tile / cell_tiles;
  const int64_t first_cell = cell / kGroupCells * kGroupCells;
  const int64_t position = tile * P::kTile;
  const int at = static_cast<int>(cell - first_cell);
  const auto find = [](int64_t begin, int64_t end, auto before) { return partition_point(begin, end, before); };
  Range<int64_t> row{position, position};
  if (tile < problem.tiles) row = problem.segments.segment_of(position, find);
  const auto items_of = [&](int cell) {
    return Range<int64_t>{clamp((first_cell + cell) * cell_tiles * P::kTile, row.begin, row.end),
                          clamp((first_cell + cell + 1) * cell_tiles * P::kTile, row.begin, row.end)};
  };
  const Word* const codes = problem.buffers[phases->home[phase]].keys;
  const auto rank = [&](int64_t position) { return problem.order.rank(codes[position]); };

  // Each half of the warp has the group's cells in its lanes: the greatest item before a cell, and the least after it.
  const int lane = threadIdx.x % kWarp;
  const int own = lane % kGroupCells;
  const Range<int64_t> items = items_of(own);
  const bool empty = items.size() <= 0;
  Word before = empty ? Word{0} : rank(items.end - 1);
  Word after = empty ? static_cast<Word>(~Word{0}) : rank(items.begin);
  const auto shuffled = [&](Word word, int from) {
    return static_cast<Word>(__shfl_sync(0xffffffffu, word, from, kGroupCells));
  };
#pragma unroll
  for (int distance = 1; distance < kGroupCells; distance *= 2) {
    const Word below = shuffled(before, maximum(own - distance, 0));
    const Word above = shuffled(after, minimum(own + distance, kGroupCells - 1));
    before = maximum(before, below);
    after = minimum(after, above);
  }
  before = shuffled(before, maximum(own - 1, 0));
  after = shuffled(after, minimum(own + 1, kGroupCells - 1));
  if (own == 0) before = 0;
  if (own == kGroupCells - 1) after = static_cast<Word>(~Word{0});
  const unsigned cuts = __ballot_sync(0xffffffffu, before <= after) & ((1u << kGroupCells) - 1);

  // The cells in which the segment begins and ends.
  const unsigned earlier = cuts & ((1u << at) - 1);
  const unsigned later = cuts & ~((2u << at) - 1);
  const bool is_cut = cuts >> at & 1;
  const Word greatest = shuffled(before, at);
  const Word least = shuffled(after, at);
  const Word first = row.size() > 0 ? rank(position) : greatest;
  const bool from_left = !is_cut || first < greatest;
  const bool to_right = !is_cut || first > least;
  TileDescriptor descriptor{{position, position}, 0, 0, 0};
  if (row.size() > 1 && (from_left || to_right)) {
    const int begin = from_left ? 31 - __clz(earlier) : at;
    const int end = to_right ? __ffs(later) - 1 : at;
    const bool searches_end = lane >= kGroupCells;
    const Word end_bound = shuffled(before, end);
    const Word begin_bound = shuffled(after, begin);
    const Word bound = searches_end ? end_bound : begin_bound;
    const Range<int64_t> searched = items_of(searches_end ? end : begin);
    const int64_t found = warp_partition_point<kGroupCells>(searched.begin, searched.end, [&](int64_t position) {
      return searches_end ? rank(position) < bound : !(bound < rank(position));
    });
    descriptor.segment = {__shfl_sync(0xffffffffu, found, 0), __shfl_sync(0xffffffffu, found, kGroupCells)};
    descriptor.first_tile = (first_cell + begin) * cell_tiles;
    descriptor.rounds = kPhaseRounds * phase + (ceil_log2(end - begin + 1) + 1) / 2;
  }
  if (lane != 0) return;
  problem.descriptors[tile] = descriptor;
  if (descriptor.rounds > phases->rounds[phase]) atomicMax(&phases->rounds[phase], descriptor.rounds);
  if (tile % kCountedTiles == kCountedTiles / 2 && descriptor.rounds % 2 == 1) {
    atomicAdd(&phases->odd[phase], static_cast<int>(minimum<int64_t>(descriptor.segment.size(), P::kTile)));
  }
}

// Brings each segment to where its rounds start from, and what is in place to where they end: in the other buffer than
// now if that is the less to copy.
template <typename Order, typename Payload>
__global__ void __launch_bounds__(256)
    start_segments(const __grid_constant__ Problem<Order, Payload> problem, int phase, Phases* phases) {
  using P = Problem<Order, Payload>;
  const int64_t tile = blockIdx.x;
  const int64_t origin = tile * P::kTile;
  const int64_t tile_end = origin + problem.tile_size(tile);
  const int home = phases->home[phase];
  const bool most_odd = phases->odd[phase] > problem.total / (2 * kCountedTiles);
  const int end_buffer = problem.last_phase ? 0 : home ^ most_odd;
  if (tile == 0 && threadIdx.x == 0) phases->home[phase + 1] = end_buffer;
  const TileDescriptor left = problem.descriptors[tile];
  const TileDescriptor right = problem.descriptors[tile + 1];
  const int64_t left_end = minimum(left.segment.end, tile_end);
  const int64_t right_begin = right.segment.begin < left_end ? tile_end : minimum(right.segment.begin, tile_end);
  const auto bring = [&](int rounds, int64_t begin, int64_t end) {
    const int start = end_buffer ^ (rounds & 1);
    const bool decode = problem.last_phase && rounds == 0;
    if (start == home && (!decode || problem.order.keeps_bits())) return;
    const Buffer<Order, Payload>& source = problem.buffers[home];
    const Buffer<Order, Payload>& target = problem.buffers[start];
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += 256) {
      target.keys[i] = decode ? problem.order.decode(source.keys[i]) : source.keys[i];
      if constexpr (P::kHasPayload) {
        if (start != home) target.payload[i] = source.payload[i];
      }
    }
  };
  bring(left.rounds, origin, left_end);
  bring(0, left_end, right_begin);
  bring(right.rounds, right_begin, tile_end);
}

}  // namespace mgpu::cuda::sorting
