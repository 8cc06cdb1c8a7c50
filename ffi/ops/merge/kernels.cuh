// The merge pipeline takes the tiles of the output; each thread merges a few items of a tile.
#pragma once

#include "ops/common/payload.h"
#include "ops/merge/plan.h"
#include "ops/sorted_pair/merge_pipeline.cuh"

namespace mgpu::cuda::merging {

template <typename Order, typename Payload>
struct Problem {
  PipelineTiles<Order, true> stream;
  typename Order::Word* keys;
  MergeOperands::Payload a_payload;
  MergeOperands::Payload b_payload;
  Payload* payload;
  int64_t b_index;  // if indices are the payload, the index of B's first item
};

template <int kItems, typename Payload>
__device__ __forceinline__ void take_indices(Payload (&values)[kItems], unsigned from_b, int64_t a_shift,
                                             int64_t b_shift, int a, int b) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const bool is_b = (from_b >> i) & 1;
    values[i] = static_cast<Payload>(is_b ? b_shift + b : a_shift + a);
    (is_b ? b : a) += 1;
  }
}

template <int kItems, typename Payload>
__device__ __forceinline__ void take_values(Payload (&values)[kItems], unsigned from_b, const Payload* payload, int a,
                                            int b) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const bool is_b = (from_b >> i) & 1;
    values[i] = payload[is_b ? b : a];
    a += !is_b;
    b += is_b;
  }
}

template <typename Word, typename Payload>
__device__ __forceinline__ void fill_dead(Word* out, Payload* out_payload, int live, int size, bool gives_indices) {
  for (int position = live + threadIdx.x; position < size; position += kPipelineWorkers) {
    out[position] = 0;
    if constexpr (kPayloadWidth<Payload> > 0) {
      out_payload[position] = gives_indices ? static_cast<Payload>(-1) : Payload{0};
    }
  }
}

template <typename Order, typename Payload, bool kLargeStages>
__global__ void __launch_bounds__(kPipelineThreads, kPipelineBlocks)
    merge_tiles(const __grid_constant__ Problem<Order, Payload> problem) {
  using Word = typename Order::Word;
  constexpr bool kHasPayload = kPayloadWidth<Payload> > 0;
  constexpr PipelineShape kShape = merge_shape(sizeof(Word), kPayloadWidth<Payload>, kLargeStages);
  if constexpr (kLargeStages && !may_grant(kShape.wanted_bytes())) return __trap();
  constexpr int kItems = kShape.items;
  using Stream = MergePipeline<Order, kItems, false>;
  extern __shared__ __align__(kLineBytes) unsigned char stages[];
  __shared__ typename Stream::Shared shared;
  const SortedPair& pair = problem.stream.tiles.pair;

  const Payload* const a_values = static_cast<const Payload*>(problem.a_payload.data);
  const Payload* const b_values = static_cast<const Payload*>(problem.b_payload.data);
  const bool gives_indices = !a_values && !b_values;
  const auto a_first = [&](const MergeTile& tile) { return tile.row * problem.a_payload.stride + tile.a; };
  const auto b_first = [&](const MergeTile& tile) { return tile.row * problem.b_payload.stride + tile.b; };
  const auto a_place = [&](const MergeTile& tile) { return place_in_line(a_values, a_first(tile)); };
  const auto b_line = [&](const auto& plan) {
    return round_up_to_line<Payload>(a_place(plan.tile) + static_cast<int>(plan.tile.a_count) + plan.a_after);
  };
  constexpr int kKeyBytes = pipeline_run_bytes(sizeof(Word), kItems);
  const auto payload_of = [&](unsigned char* stage) { return reinterpret_cast<Payload*>(stage + kKeyBytes); };

  const auto first_slot = [&](const MergeTile& tile) { return tile.row * pair.row_slots() + tile.begin; };

  const auto load = [&](const typename Stream::Plan& plan, unsigned char* stage) {
    if constexpr (kHasPayload) {
      const int a_count = gives_indices ? 0 : static_cast<int>(plan.tile.a_count) + plan.a_after;
      const int b_count = gives_indices ? 0 : static_cast<int>(plan.tile.b_count) + plan.b_after;
      const BulkLoad<Payload> a(a_values, problem.a_payload.stored, a_first(plan.tile), a_count, payload_of(stage));
      const BulkLoad<Payload> b(b_values, problem.b_payload.stored, b_first(plan.tile), b_count,
                                payload_of(stage) + b_line(plan));
      return [=](CopyBarrier& barrier) { return a.start(barrier) + b.start(barrier); };
    } else {
      return [](CopyBarrier&) { return 0u; };
    }
  };

  const auto work = [&](const typename Stream::Plan& plan, const typename Stream::Keys& keys, unsigned char* stage) {
    const MergeTile& tile = plan.tile;
    const int diagonal = threadIdx.x * kItems;
    Word merged[kItems];
    const MergeCursor cursor = keys.cursor(diagonal);
    const unsigned from_b = keys.template merge_from<kItems>(cursor, [&](int i, bool in_b, const auto& heads) {
      merged[i] = heads.order.decode(in_b ? heads.b_code : heads.a_code);
    });
    Payload values[kHasPayload ? kItems : 1];
    Payload* const payload = payload_of(stage);
    if constexpr (kHasPayload) {
      int a = cursor.a - keys.runs.a, b = cursor.b - keys.runs.b;
      if (gives_indices) {
        take_indices(values, from_b, tile.a, problem.b_index + tile.b, a, b);
      } else {
        a += a_place(tile);
        b += b_line(plan) + place_in_line(b_values, b_first(tile));
        take_values(values, from_b, payload, a, b);
      }
    }
    Stream::sync_workers();

    const int64_t slot = first_slot(tile);
    Word* const out = keys.buffer + place_in_line(problem.keys, slot);
    Payload* out_payload = nullptr;
#pragma unroll
    for (int i = 0; i < kItems; ++i) out[diagonal + i] = merged[i];
    if constexpr (kHasPayload) {
      out_payload = payload + place_in_line(problem.payload, slot);
#pragma unroll
      for (int i = 0; i < kItems; ++i) out_payload[diagonal + i] = values[i];
    }
    const int size = static_cast<int>(tile.size);
    if (const int live = static_cast<int>(tile.live()); live < size) {
      Stream::sync_workers();
      fill_dead(out, out_payload, live, size, gives_indices);
    }
    if constexpr (!kHasBulkCopies) {
      Stream::sync_workers();
      store_run<kPipelineWorkers>(problem.keys, slot, size, keys.buffer);
      if constexpr (kHasPayload) store_run<kPipelineWorkers>(problem.payload, slot, size, payload);
    }
  };

  const auto store = [&](const typename Stream::Plan& plan, unsigned char* stage) {
    const MergeTile& tile = plan.tile;
    const int64_t slot = first_slot(tile);
    const int size = static_cast<int>(tile.size);
    const BulkStore<Word> keys(problem.keys, slot, size, reinterpret_cast<const Word*>(stage));
    if constexpr (kHasPayload) {
      const BulkStore<Payload> payload(problem.payload, slot, size, payload_of(stage));
      return [=] { keys.start(), payload.start(); };
    } else {
      return [=] { keys.start(); };
    }
  };

  Stream::run(problem.stream, shared, stages, kShape.stage_bytes, load, work, store);
}

}  // namespace mgpu::cuda::merging
