// Finds where segments start in a tile, and which segments each thread's items belong to.
#pragma once

#include "algorithm/segments.h"
#include "cuda/block/partition.cuh"

namespace mgpu::cuda {

template <int kThreads, int kItems>
struct TileHeads {
  static constexpr int kTile = kThreads * kItems;
  static constexpr int kWords = kTile / 32 + 2;  // of_thread reads past the tile's words
  static constexpr int kWarps = kThreads / kWarp;
  static_assert(kItems <= 31 && kThreads % kWarp == 0);

  struct Shared {
    unsigned words[kWords];
    int warp_first[kWarps];  // the first and the last head among a warp's items
    int warp_last[kWarps];
  };

  // A thread's items [begin, begin + kItems) and the segments they belong to, clipped to the tile. Segments between the
  // first and the last one start and end within the thread.
  struct Thread {
    unsigned heads;    // bit i: item i starts a segment
    Range<int> first;  // the segment of the thread's first item
    Range<int> last;   // the segment of its last item; equal to `first` if no segment starts in between
    __device__ bool one_segment() const { return first.begin == last.begin; }
  };

  // Marks the heads of the tile of `size` positions that starts at `origin`. Ends in a barrier.
  __device__ static void mark(Shared& shared, const Segments& segments, int64_t origin, int size,
                              Range<int64_t> listed) {
    for (int word = threadIdx.x; word < kWords; word += kThreads) shared.words[word] = 0;
    __syncthreads();
    segments.mark_heads({origin, origin + size}, listed, threadIdx.x, kThreads, [&](int64_t position) {
      const int i = static_cast<int>(position - origin);
      atomicOr(&shared.words[i / 32], 1u << (i % 32));
    });
    __syncthreads();
  }

  // Each position from `size` on is its own segment. Contains a barrier.
  __device__ static Thread of_thread(Shared& shared, int size) {
    const int begin = threadIdx.x * kItems;
    const int lane = threadIdx.x % kWarp;
    const int warp = threadIdx.x / kWarp;
    unsigned heads = __funnelshift_r(shared.words[begin / 32], shared.words[begin / 32 + 1], begin % 32);
    heads &= (1u << kItems) - 1;
    if (begin + kItems > size) heads |= ((1u << kItems) - 1) & (~0u << maximum(size - begin, 0));

    const int first_head = begin + __ffs(heads) - 1;  // undefined without heads
    const int last_head = begin + 31 - __clz(heads);
    const unsigned with_heads = __ballot_sync(0xffffffffu, heads != 0);
    const unsigned before = with_heads & ((1u << lane) - 1);
    const unsigned after = with_heads & ~((2u << lane) - 1);
    int previous = __shfl_sync(0xffffffffu, last_head, before ? 31 - __clz(before) : lane);
    int next = __shfl_sync(0xffffffffu, first_head, after ? __ffs(after) - 1 : lane);
    const int warp_first = __shfl_sync(0xffffffffu, first_head, with_heads ? __ffs(with_heads) - 1 : 0);
    const int warp_last = __shfl_sync(0xffffffffu, last_head, with_heads ? 31 - __clz(with_heads) : 0);
    if (lane == 0) {
      shared.warp_first[warp] = with_heads ? warp_first : -1;
      shared.warp_last[warp] = with_heads ? warp_last : -1;
    }
    __syncthreads();
    if (!before) {
      previous = 0;
      for (int w = warp - 1; w >= 0; --w) {
        if (shared.warp_last[w] < 0) continue;
        previous = shared.warp_last[w];
        break;
      }
    }
    if (!after) {
      next = size;
      for (int w = warp + 1; w < kWarps; ++w) {
        if (shared.warp_first[w] < 0) continue;
        next = shared.warp_first[w];
        break;
      }
    }
    Thread thread;
    thread.heads = heads;
    thread.first.begin = heads & 1 ? begin : previous;
    const unsigned inner = heads & ~1u;
    thread.first.end = inner ? begin + __ffs(inner) - 1 : next;
    thread.last.begin = inner ? last_head : thread.first.begin;
    thread.last.end = next;
    return thread;
  }
};

}  // namespace mgpu::cuda
