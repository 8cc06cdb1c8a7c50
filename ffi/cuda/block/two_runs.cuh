// A tile of two sorted arrays in shared memory, side by side: A's items, then B's.
#pragma once

#include "algorithm/sorted_pair.h"
#include "cuda/block/copy_run.cuh"

namespace mgpu::cuda {

// One thread computes this for the whole block.
struct TwoRuns {
  int a_count;
  int b_count;
  int a_place;  // the place of A's first item in shared memory and in its chunk
  int b_place;
  int b_chunk;      // where B's chunks begin
  bool whole;       // whether all chunks lie within the arrays
  int64_t a_first;  // A's first item in the array
  int64_t b_first;
  const uint4* a_chunks;
  const uint4* b_chunks;  // counted from A's first chunk on
};

template <typename Word>
constexpr int kChunkItems = kChunkBytes / sizeof(Word);

// Each run may begin and end with a partial chunk.
template <typename Word>
constexpr int two_runs_room(int items) {
  return items + 4 * kChunkItems<Word>;
}

template <typename Word>
__device__ TwoRuns two_runs(const SortedPair& pair, int64_t row, int64_t a, int a_count, int64_t b, int b_count) {
  const Word* const a_keys = static_cast<const Word*>(pair.a.keys);
  const Word* const b_keys = static_cast<const Word*>(pair.b.keys);
  TwoRuns runs;
  runs.a_count = a_count;
  runs.b_count = b_count;
  runs.a_first = row * pair.a.stride + a;
  runs.b_first = row * pair.b.stride + b;
  const int b_lead = place_in_chunk(b_keys, runs.b_first);
  runs.a_place = place_in_chunk(a_keys, runs.a_first);
  runs.b_chunk = round_up_to_chunk<Word>(runs.a_place + a_count);
  runs.b_place = runs.b_chunk + b_lead;
  runs.whole = runs.a_first >= runs.a_place && runs.a_first - runs.a_place + runs.b_chunk <= pair.a.stored &&
               runs.b_first >= b_lead &&
               runs.b_first - b_lead + round_up_to_chunk<Word>(b_lead + b_count) <= pair.b.stored;
  runs.a_chunks = reinterpret_cast<const uint4*>(a_keys + runs.a_first - runs.a_place);
  runs.b_chunks = reinterpret_cast<const uint4*>(b_keys + runs.b_first - b_lead) - runs.b_chunk / kChunkItems<Word>;
  return runs;
}

// Starts to copy the runs, which have kItems items at most, to `keys`, at the start of a chunk. A call of finish_copy
// must follow.
template <int kThreads, int kItems, typename Word>
__device__ void start_copy(const SortedPair& pair, const TwoRuns& runs, Word* keys) {
  if (!runs.whole) {
    start_copy<kThreads>(static_cast<const Word*>(pair.a.keys), {0, pair.a.stored}, runs.a_first, runs.a_count, keys);
    start_copy<kThreads>(static_cast<const Word*>(pair.b.keys), {0, pair.b.stored}, runs.b_first, runs.b_count,
                         keys + runs.b_chunk);
    return;
  }
  constexpr int kMaxChunks = two_runs_room<Word>(kItems) / kChunkItems<Word>;
  const int a_end = runs.b_chunk / kChunkItems<Word>;
  const int end = round_up_to_chunk<Word>(runs.b_place + runs.b_count) / kChunkItems<Word>;
#pragma unroll
  for (int i = 0; i < ceil_div(kMaxChunks, kThreads); ++i) {
    const int chunk = i * kThreads + threadIdx.x;
    if (chunk >= end) break;
    copy_async(reinterpret_cast<uint4*>(keys) + chunk, (chunk < a_end ? runs.a_chunks : runs.b_chunks) + chunk);
  }
}

// Waits for the keys and turns them into codes. Contains a barrier.
template <int kThreads, typename Order>
__device__ void finish_copy(const TwoRuns& runs, const Order& order, typename Order::Word* keys) {
  using Word = typename Order::Word;
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  if (order.encode(Word{0}) == Word{0}) return;  // codes are the keys
  for (int i = threadIdx.x; i < runs.b_place + runs.b_count; i += kThreads) keys[i] = order.encode(keys[i]);
  __syncthreads();
}

}  // namespace mgpu::cuda
