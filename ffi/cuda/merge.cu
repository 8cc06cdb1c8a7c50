// merge on CUDA: each block streams an equal share of the output, a tile at a time; each thread merges a few items of
// it.
#include "cuda/cta/merge_stream.cuh"
#include "cuda/launch.cuh"
#include "operands/merge.h"
#include "operations.h"

namespace mgpu::cuda {

namespace {

template <typename Order, typename Payload>
struct Problem {
  using Word = typename Order::Word;
  static constexpr bool kHasPayload = !std::is_same_v<Payload, NoPayload>;
  static constexpr int kThreads = 256;
  // Shared memory of a slot: two buffers of keys, a payload, and where the slot's item came from. Tiles are as large as
  // 56 KB allow, which leaves room for four blocks on sm_90 and for one on sm_75.
  static constexpr int kSlotBytes = 2 * sizeof(Word) + (kHasPayload ? sizeof(Payload) + sizeof(uint16_t) : 0);
  static constexpr int kItems = (minimum<int>(15, (56 << 10) / (kThreads * kSlotBytes)) - 1) | 1;
  using Stream = MergeStream<Order, kThreads, kItems, false>;
  // Blocks that a multiprocessor of sm_90 should hold: caps registers where that costs no spill.
  static constexpr int kBlocksPerProcessor = !kHasPayload && sizeof(Word) == 4 ? 5 : 4;
  static constexpr int kPayloadBytes = Stream::kTile * sizeof(Payload) + 4 * kChunkBytes;

  MergeTiles<Order> tiles;
  Word* keys;
  MergeOperands::Payload a_payload;
  MergeOperands::Payload b_payload;
  Payload* payload;

  bool gives_indices() const { return !a_payload.data && !b_payload.data; }
  int shared_bytes() const {
    return 2 * Stream::kBufferBytes +
           (kHasPayload ? Stream::kTile * static_cast<int>(sizeof(uint16_t)) + (gives_indices() ? 0 : kPayloadBytes)
                        : 0);
  }
};

template <typename Order, typename Payload>
__global__ void __launch_bounds__(Problem<Order, Payload>::kThreads, Problem<Order, Payload>::kBlocksPerProcessor)
    merge_shares(const __grid_constant__ Problem<Order, Payload> problem) {
  using P = Problem<Order, Payload>;
  using Word = typename Order::Word;
  constexpr int kItems = P::kItems;
  constexpr int kThreads = P::kThreads;
  extern __shared__ __align__(16) unsigned char buffers[];
  __shared__ typename P::Stream::Shared shared;
  uint16_t* const sources = reinterpret_cast<uint16_t*>(buffers + 2 * P::Stream::kBufferBytes);
  Payload* const payload = reinterpret_cast<Payload*>(sources + P::Stream::kTile);
  const SortedPair& pair = problem.tiles.pair;

  // The tile's payloads lie in shared memory as its keys do: A's, then B's from the next chunk on.
  const Payload* const a_values = static_cast<const Payload*>(problem.a_payload.data);
  const Payload* const b_values = static_cast<const Payload*>(problem.b_payload.data);
  const bool gives_indices = !a_values && !b_values;
  const auto a_first = [&](const MergeTile& tile) { return tile.row * problem.a_payload.stride + tile.a; };
  const auto b_first = [&](const MergeTile& tile) { return tile.row * problem.b_payload.stride + tile.b; };
  const auto a_place = [&](const MergeTile& tile) { return place_in_chunk(a_values, a_first(tile)); };
  const auto b_chunk = [&](const MergeTile& tile) {
    return round_up_to_chunk<Payload>(a_place(tile) + static_cast<int>(tile.a_count));
  };

  const auto start = [&](const MergeTile& tile) {
    if constexpr (P::kHasPayload) {
      if (gives_indices) return;
      start_copy<kThreads>(a_values, problem.a_payload.stored, a_first(tile), static_cast<int>(tile.a_count), payload);
      start_copy<kThreads>(b_values, problem.b_payload.stored, b_first(tile), static_cast<int>(tile.b_count),
                           payload + b_chunk(tile));
    }
  };

  const auto work = [&](const MergeTile& tile, const TileKeys<Order>& keys) {
    const int diagonal = threadIdx.x * kItems;
    const int size = static_cast<int>(tile.size);
    const int live = static_cast<int>(tile.live());
    const int a_count = static_cast<int>(tile.a_count);
    Word merged[kItems];
    const MergeCursor cursor = keys.cursor(diagonal);
    const unsigned from_b = keys.template merge_from<kItems>(
        cursor, [&](int i, bool in_b, const MergeHeads<Word>& heads) { merged[i] = in_b ? heads.b_key : heads.a_key; });
    __syncthreads();

#pragma unroll
    for (int i = 0; i < kItems; ++i) keys.buffer[diagonal + i] = merged[i];
    if constexpr (P::kHasPayload) {
      int a = cursor.a - keys.runs.a;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const bool is_b = (from_b >> i) & 1;
        sources[diagonal + i] = static_cast<uint16_t>(is_b ? a_count + diagonal + i - a : a);
        a += !is_b;
      }
      copy_wait<1>();
    }
    __syncthreads();
    if (live < size) {
      for (int position = live + threadIdx.x; position < size; position += kThreads) keys.buffer[position] = 0;
      __syncthreads();
    }

    const int64_t slot = tile.row * pair.row_slots() + tile.begin;
    Word* const out = problem.keys + slot;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int position = i * kThreads + threadIdx.x;
      if (position < size) out[position] = keys.buffer[position];
    }
    if constexpr (P::kHasPayload) {
      Payload* const out_payload = problem.payload + slot;
      // Added to a source in A or in B, these give its index in the concatenation or its place in shared memory.
      const int64_t a_shift = gives_indices ? tile.a : a_place(tile);
      const int64_t b_shift =
          (gives_indices ? pair.a.length + tile.b : b_chunk(tile) + place_in_chunk(b_values, b_first(tile))) - a_count;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        const int position = i * kThreads + threadIdx.x;
        if (position >= size) continue;
        const int source = sources[position];
        const int64_t place = source + (source < a_count ? a_shift : b_shift);
        if (gives_indices) {
          out_payload[position] = position < live ? static_cast<Payload>(place) : static_cast<Payload>(-1);
        } else {
          out_payload[position] = position < live ? payload[static_cast<int>(place)] : Payload{0};
        }
      }
    }
  };

  P::Stream::run(problem.tiles, shared, buffers, start, work);
}

template <typename Order, typename Payload>
void run(const Call& call, const MergeOperands& operands, Order order, cudaStream_t stream) {
  using P = Problem<Order, Payload>;
  const P problem{{operands.pair, order},
                  static_cast<typename Order::Word*>(operands.keys),
                  operands.a_payload,
                  operands.b_payload,
                  static_cast<Payload*>(operands.payload)};
  const auto kernel = merge_shares<Order, Payload>;
  const int bytes = problem.shared_bytes();
  allow_shared(call, kernel, bytes);
  const int blocks =
      resident_blocks(call, kernel, P::kThreads, bytes, ceil_div<int64_t>(operands.pair.slots(), P::Stream::kTile));
  kernel<<<blocks, P::kThreads, bytes, stream>>>(problem);
  check_launch(call);
}

}  // namespace

void merge(const Call& call, cudaStream_t stream) {
  const MergeOperands operands(call);
  if (operands.pair.slots() == 0) return;
  dispatch_order(call, operands.key_type, operands.descending, [&](auto order) {
    dispatch_payload(call, operands.payload_width,
                     [&](auto payload) { run<decltype(order), decltype(payload)>(call, operands, order, stream); });
  });
}

}  // namespace mgpu::cuda
