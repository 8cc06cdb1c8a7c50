// Asynchronous copies of runs of device memory to shared memory.
#pragma once

#include "algorithm/segments.h"
#include "cuda/ptx.cuh"

namespace mgpu::cuda {

// Copies move whole, aligned chunks, so an item has the same place within its chunk in shared memory.
constexpr int kChunkBytes = 16;

template <typename Word>
__device__ int place_in_chunk(const Word* array, int64_t first) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(array + first) % kChunkBytes / sizeof(Word));
}

template <typename Word>
__device__ int round_up_to_chunk(int position) {
  constexpr int kItems = kChunkBytes / sizeof(Word);
  return (position + kItems - 1) / kItems * kItems;
}

// Starts to copy items [first, first + count) of an array to `to`, at the start of a chunk: item `first` lands at
// to[place_in_chunk(array, first)]. No item outside of `readable` is read. All threads of the block call it, then
// copy_commit. Before sm_80 the copy is done on return.
template <int kThreads, typename Word>
__device__ void start_copy(const Word* array, Range<int64_t> readable, int64_t first, int count, Word* to) {
  constexpr int kItems = kChunkBytes / sizeof(Word);
  if (count <= 0) return;
  const int64_t origin = first - place_in_chunk(array, first);
  const int chunks = static_cast<int>((first - origin + count + kItems - 1) / kItems);
  const int begin = origin < readable.begin;  // the whole chunks
  const int end = static_cast<int>(minimum<int64_t>(chunks, (readable.end - origin) / kItems));
#pragma unroll 1
  for (int chunk = begin + threadIdx.x; chunk < end; chunk += kThreads) {
    copy_async(reinterpret_cast<uint4*>(to) + chunk, reinterpret_cast<const uint4*>(array + origin) + chunk);
  }
  if ((begin > 0 || end < chunks) && threadIdx.x < kItems) {  // the items of chunks that cross the edges
    const auto copy = [&](int i) {
      if (origin + i >= readable.begin && origin + i < readable.end) to[i] = array[origin + i];
    };
    if (begin > 0) copy(threadIdx.x);
    if (end < chunks) copy((chunks - 1) * kItems + threadIdx.x);
  }
}

}  // namespace mgpu::cuda
