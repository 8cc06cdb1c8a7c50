#pragma once

#include "cuda/block/copy_run.cuh"
#include "cuda/block/serial_merge.cuh"
#include "ops/segmented_sort/problem.cuh"

namespace mgpu::cuda::sorting {

constexpr int kPlanSlots = 4;  // three are in use

template <typename Order, typename Payload>
struct MergeShared {
  using Shape = Problem<Order, Payload>;
  // A run may leave the first and the last of its chunks partly empty; a merge reads past the end of its runs.
  static constexpr int kPadding = 2 * kRuns * 2 * (kChunkBytes / sizeof(typename Order::Word)) + Shape::kShape.items;
  alignas(kChunkBytes) typename Order::Word codes[2][(Shape::kTile + kPadding + 15) / 16 * 16];
  uint16_t from[Shape::kHasPayload ? Shape::kTile + Shape::kShape.items : 1];
  MergePlan plans[kPlanSlots];
};

// Calls visit(i) for each of a thread's
// strided positions in [begin, end).
template <TileShape kShape, typename Visit>
__device__ void for_strided(int begin, int end, Visit visit) {
  if (begin == 0 && end == kShape.threads * kShape.items) {
#pragma unroll
    for (int i = 0; i < kShape.items; ++i) visit(i);
  } else {
#pragma unroll
    for (int i = 0; i < kShape.items; ++i) {
      const int position = i * kShape.threads + threadIdx.x;
      if (position >= begin && position < end) visit(i);
    }
  }
}

// Maps the place in shared memory of a piece's item, or of a chunk of
// `granule` items, to the position in device memory. The map is in registers.
struct PieceSource {
  int at[kRuns];
  int64_t from[kRuns];

  __device__ explicit PieceSource(const MergePiece& piece, int granule = 1) {
#pragma unroll
    for (int k = 0; k < kRuns; ++k) {
      at[k] = piece.at[k] / granule * granule;
      from[k] = piece.from[k];
    }
  }
  __device__ int64_t operator()(int place) const {
    return place + (place < at[2] ? (place < at[1] ? from[0] : from[1]) : (place < at[3] ? from[2] : from[3]));
  }
};

// Loads the codes of the chunks across the segment's edges (MergePiece), at most one code per thread.
template <typename Word>
__device__ void load_edges(const MergePiece& piece, const Word* keys, Word* codes) {
  constexpr int kItems = kChunkBytes / sizeof(Word);
  const int i = threadIdx.x % (2 * kItems);
  const int at = i - kItems + (i < kItems ? piece.whole_begin : piece.whole_end);
  int run = 0;
#pragma unroll 1
  for (int k = 1; k < kRuns; ++k) run += at >= piece.at[k];
  const int place = at - piece.at[run];
  if (place >= 0 && place < piece.count[run]) copy_async(codes + at, keys + piece.from[run] + at);
}

template <typename Order, typename Payload>
__device__ void load_tile(const Problem<Order, Payload>& problem, const MergePiece (&pieces)[2],
                          typename Order::Word* codes) {
  using Word = typename Order::Word;
  constexpr int kItems = kChunkBytes / sizeof(Word);
#pragma unroll 1
  for (const MergePiece& piece : pieces) {
    if (piece.begin >= piece.end) continue;
    const Word* const keys = problem.buffers[piece.source].keys;
    const PieceSource source(piece, kItems);
    const int end = piece.whole_end;
#pragma unroll 1
    for (int at = piece.whole_begin + threadIdx.x * kItems; at < end;
         at += Problem<Order, Payload>::kShape.threads * kItems) {
      copy_async(reinterpret_cast<uint4*>(codes + at), reinterpret_cast<const uint4*>(keys + source(at)));
    }
    if (threadIdx.x < 2 * kItems) load_edges(piece, keys, codes);
  }
}

template <typename Order, typename Payload>
__device__ void store_tile(const Problem<Order, Payload>& problem, const MergePlan& plan,
                           const typename Order::Word* codes, const uint16_t* from) {
  using P = Problem<Order, Payload>;
  constexpr TileShape kShape = P::kShape;
  const Order order = problem.order;
#pragma unroll 1
  for (const MergePiece& piece : plan.pieces) {
    if (piece.begin >= piece.end) continue;
    const Buffer<Order, Payload> source = problem.buffers[piece.source];
    const Buffer<Order, Payload> target = problem.buffers[1 - piece.source];
    auto* const keys = target.keys + plan.origin + threadIdx.x;
    const bool decode = piece.decode;
    for_strided<kShape>(piece.begin, piece.end, [&](int i) {
      const auto code = codes[i * kShape.threads + threadIdx.x];
      keys[i * kShape.threads] = decode ? order.decode(code) : code;
    });
    if constexpr (P::kHasPayload) {
      auto* const payload = target.payload + plan.origin + threadIdx.x;
      const PieceSource place(piece);
      Payload fetched[kShape.items];
      for_strided<kShape>(piece.begin, piece.end,
                          [&](int i) { fetched[i] = source.payload[place(from[i * kShape.threads + threadIdx.x])]; });
      for_strided<kShape>(piece.begin, piece.end, [&](int i) { payload[i * kShape.threads] = fetched[i]; });
    }
  }
}

// The merges of two runs that make a tile in shared memory. On the first level, each piece merges runs 0 and 1, and
// runs 2 and 3; on the second level, each piece merges the results of these two merges.
struct TileMerges {
  const MergePiece (&pieces)[2];
  bool second_level;
  int begins[4];  // where each merge's outputs begin; on the second level, a piece's only merge is its first

  __device__ TileMerges(const MergePiece (&pieces)[2], bool second_level) : pieces(pieces), second_level(second_level) {
    constexpr int kNever = 1 << 24;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      begins[2 * p] = pieces[p].begin;
      begins[2 * p + 1] = second_level ? kNever : middle(pieces[p]);
    }
    if (second_level) begins[1] = begins[2];
  }
  __device__ static int middle(const MergePiece& piece) { return piece.begin + piece.count[0] + piece.count[1]; }

  // On the second level, merges 1 and 2 are both the merge of the right piece.
  __device__ int at(int i) const { return (begins[1] <= i) + (begins[2] <= i) + (begins[3] <= i); }
  __device__ int begin(int merge) const {
    return merge == 0 ? begins[0] : merge == 1 ? begins[1] : merge == 2 ? begins[2] : begins[3];
  }
  __device__ int end(int merge) const {
    return merge == 0 ? begins[1] : merge == 1 ? begins[2] : merge == 2 ? begins[3] : 1 << 24;
  }
  __device__ MergeCursor runs(int merge) const {
    const MergePiece& piece = pieces[second_level ? merge > 0 : merge / 2];
    if (second_level) return {piece.begin, middle(piece), middle(piece), piece.end};
    const int run = merge % 2 * 2;
    return {piece.at[run], piece.at[run] + piece.count[run], piece.at[run + 1],
            piece.at[run + 1] + piece.count[run + 1]};
  }
};

// Outputs outside the pieces are undefined.
template <int kTile, int kItems, typename Word, typename Less>
__device__ void take_outputs(const TileMerges& merges, const Word* codes, int begin, Less less, Word (&taken)[kItems],
                             uint32_t (&from)[kItems]) {
  int merge = merges.at(begin);
  const MergeCursor runs = merges.runs(merge);
  const int run_items = runs.a_end - runs.a + runs.b_end - runs.b;
  const MergeCursor start = shared_cursor<kTile>(codes, runs, minimum(begin - merges.begin(merge), run_items), less);
  take_merged(codes, start, less, taken, from);
  // If another merge begins within the thread's outputs, the thread takes the outputs from there on again.
  for (int other = merges.end(merge); other < begin + kItems; other = merges.end(merge)) {
    merge = merges.at(other);
    MergeHeads<Word> heads(codes, merges.runs(merge));
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (begin + i >= other) take_head(heads, less, taken[i], from[i]);
    }
  }
}

// No items come from runs 0 and 1, or none from runs 2 and 3.
__device__ inline bool is_one_merge(const MergePiece& piece) {
  return piece.count[0] + piece.count[1] == 0 || piece.count[2] + piece.count[3] == 0;
}

// With a payload, `shared_from` gets the place in shared memory that each item came from.
template <typename Order, typename Payload>
__device__ void merge_tile(const Problem<Order, Payload>& problem, const MergePiece (&pieces)[2],
                           typename Order::Word* codes, uint16_t* shared_from) {
  using P = Problem<Order, Payload>;
  using Word = typename Order::Word;
  constexpr int kItems = P::kShape.items;
  const Order order = problem.order;
  const auto less = [&](Word a, Word b) { return order.less(a, b); };
  const int begin = threadIdx.x * kItems;
  const bool takes = begin < pieces[0].end || (begin + kItems > pieces[1].begin && begin < pieces[1].end);
  const int levels = is_one_merge(pieces[0]) && is_one_merge(pieces[1]) ? 1 : 2;
#pragma unroll 1
  for (int level = 0; level < levels; ++level) {
    Word taken[kItems];
    uint32_t from[kItems];
    if (takes) {
      take_outputs<P::kTile>(TileMerges(pieces, level == 1), codes, begin, less, taken, from);
      if constexpr (P::kHasPayload) {
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
          const int place = position_of(from[i], codes);
          from[i] = level == 0 ? place : shared_from[place];
        }
      }
    }
    __syncthreads();
    if (takes) {
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        codes[begin + i] = taken[i];
        if constexpr (P::kHasPayload) shared_from[begin + i] = static_cast<uint16_t>(from[i]);
      }
    }
    __syncthreads();
  }
}

__device__ inline void load_plan(const MergePlan* plan, MergePlan* shared) {
  constexpr int kWords = sizeof(MergePlan) / sizeof(uint64_t);
  if (threadIdx.x >= kWords) return;
  copy_async(reinterpret_cast<uint64_t*>(shared) + threadIdx.x, reinterpret_cast<const uint64_t*>(plan) + threadIdx.x);
}

// Blocks take the planned tiles in turn. While a tile is merged, the next
// one and the plan of the one after it are being copied to shared memory.
template <typename Order, typename Payload>
__global__ void __launch_bounds__(Problem<Order, Payload>::kShape.threads, Problem<Order, Payload>::kBlocksPerProcessor)
    merge_tiles(const __grid_constant__ Problem<Order, Payload> problem, int round) {
  extern __shared__ __align__(16) unsigned char storage[];
  auto& shared = *reinterpret_cast<MergeShared<Order, Payload>*>(storage);
  const int turns = ceil_div(problem.planned[round] - static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  if (turns <= 0) return;
  const MergePlan* const plans = problem.plans + blockIdx.x;
  const auto slot = [&](int turn) -> MergePlan& { return shared.plans[turn % kPlanSlots]; };
  load_plan(plans, &slot(0));
  if (turns > 1) load_plan(plans + gridDim.x, &slot(1));
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  load_tile(problem, slot(0).pieces, shared.codes[0]);
  copy_commit();
  for (int turn = 0; turn < turns; ++turn) {
    copy_wait<0>();
    __syncthreads();
    if (turn + 1 < turns) load_tile(problem, slot(turn + 1).pieces, shared.codes[(turn + 1) % 2]);
    if (turn + 2 < turns) load_plan(plans + (turn + 2) * int64_t{gridDim.x}, &slot(turn + 2));
    copy_commit();
    merge_tile(problem, slot(turn).pieces, shared.codes[turn % 2], shared.from);
    store_tile(problem, slot(turn), shared.codes[turn % 2], shared.from);
  }
}

}  // namespace mgpu::cuda::sorting
