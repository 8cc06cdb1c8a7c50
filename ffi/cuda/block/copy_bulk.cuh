// One warp copies runs between device and shared memory, and the block's other warps
// work on them. From sm_90 on, the copy engine moves the whole chunks of a run.
#pragma once

#include "algorithm/common.h"
#include "cuda/block/copy_run.cuh"
#include "cuda/block/partition.cuh"
#include "cuda/device.h"
#include "cuda/ptx.cuh"

namespace mgpu::cuda {

template <typename Word>
__device__ int place_in_line(const Word* array, int64_t first) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(array + first) % kLineBytes / sizeof(Word));
}

// `position` counts items.
template <typename Word>
__host__ __device__ constexpr int round_up_to_line(int position) {
  constexpr int kItems = kLineBytes / sizeof(Word);
  return (position + kItems - 1) / kItems * kItems;
}

// The functions with a turn use named barrier kId in even turns, and kId + 1 in odd turns.
template <int kId, int kThreads>
__device__ void barrier_sync(int turn) {
  turn % 2 == 0 ? barrier_sync<kId, kThreads>() : barrier_sync<kId + 1, kThreads>();
}
template <int kId, int kThreads>
__device__ void barrier_arrive(int turn) {
  turn % 2 == 0 ? barrier_arrive<kId, kThreads>() : barrier_arrive<kId + 1, kThreads>();
}

// A barrier for the copies of one of two stages; before sm_90 it is the named barrier kId or kId + 1. Its uses are
// counted over both stages.
struct CopyBarrier {
  uint64_t state;

  __device__ void init() {
#if __CUDA_ARCH__ >= 900
    bulk_barrier_init(&state);
#endif
  }

  // The whole warp that started the copies calls this.
  template <int kId, int kThreads>
  __device__ void arrive([[maybe_unused]] uint32_t bytes, [[maybe_unused]] int use) {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (threadIdx.x % kWarp == 0) bulk_barrier_arrive(&state, bytes);
#else
    copy_commit();
    copy_wait<0>();
    barrier_arrive<kId, kThreads>(use);
#endif
  }

  template <int kId, int kThreads>
  __device__ void wait(int use) {
#if __CUDA_ARCH__ >= 900
    bulk_barrier_wait(&state, use / 2 % 2);
#else
    barrier_sync<kId, kThreads>(use);
#endif
  }
};

// One warp copies items [first, first + count) of an array of `size` items to shared memory. `to` is at the start of a
// line; item `first` lands at to[place_in_line(array, first)].
template <typename Word>
class BulkLoad {
 public:
  __device__ BulkLoad(const Word* array, int64_t size, int64_t first, int count, Word* to)
      : from_(array + first - place_in_chunk(array, first)),
        to_(to + place_in_line(array, first) / kItems * kItems),
        chunks_(count <= 0 ? 0 : (place_in_chunk(array, first) + count + kItems - 1) / kItems),
        low_(static_cast<int>(maximum<int64_t>(array - from_, 0))),
        high_(static_cast<int>(minimum<int64_t>(array + size - from_, chunks_ * kItems))) {}

  // The whole warp calls it. Returns the number of bytes that the barrier should wait for.
  __device__ uint32_t start([[maybe_unused]] CopyBarrier& barrier) const {
    const int lane = threadIdx.x % kWarp;
    const int begin = low_ > 0;
    const int end = high_ / kItems;
    uint32_t bytes = 0;
#if __CUDA_ARCH__ >= 900
    if (begin < end) {
      bytes = (end - begin) * kChunkBytes;
      if (lane == 0) bulk_load(to_ + begin * kItems, from_ + begin * kItems, bytes, &barrier.state);
    }
#else
#pragma unroll 4
    for (int chunk = begin + lane; chunk < end; chunk += kWarp) {
      copy_async(reinterpret_cast<uint4*>(to_) + chunk, reinterpret_cast<const uint4*>(from_) + chunk);
    }
#endif
    // These chunks cross the array's edges.
    if (begin > 0 && lane >= low_ && lane < minimum(kItems, high_)) to_[lane] = from_[lane];
    const int tail = maximum(begin, end) * kItems + lane;
    if (tail < high_) to_[tail] = from_[tail];
    return bytes;
  }

 private:
  static constexpr int kItems = kChunkBytes / sizeof(Word);
  const Word* from_;
  Word* to_;
  int chunks_;
  int low_, high_;  // where the array begins and ends, relative to from_ and clamped to the chunks
};

// One warp copies `count` items from shared memory to an array, from its item `first` on, which lies at
// from[place_in_line(array, first)]. Before sm_90 it does nothing.
template <typename Word>
class BulkStore {
 public:
  __device__ BulkStore(Word* array, int64_t first, int count, const Word* from)
      : to_(array + first - place_in_line(array, first)),
        from_(from),
        place_(place_in_line(array, first)),
        limit_(place_ + count) {}

  __device__ void start() const {
#if __CUDA_ARCH__ >= 900
    constexpr int kItems = kChunkBytes / sizeof(Word);
    const int lane = threadIdx.x % kWarp;
    const int begin = round_up_to_chunk<Word>(place_);
    const int end = maximum(begin, limit_ / kItems * kItems);
    if (begin < end && lane == 0) {
      bulk_store(to_ + begin, from_ + begin, static_cast<uint32_t>((end - begin) * sizeof(Word)));
    }
    if (place_ + lane < minimum(begin, limit_)) to_[place_ + lane] = from_[place_ + lane];
    if (end + lane < limit_) to_[end + lane] = from_[end + lane];
#endif
  }

 private:
  Word* to_;
  const Word* from_;
  int place_, limit_;
};

// Does before sm_90 what BulkStore does from sm_90 on; all threads of the block call it.
template <int kThreads, typename Word>
__device__ void store_run(Word* array, int64_t first, int count, const Word* from) {
  for (int i = threadIdx.x; i < count; i += kThreads) array[first + i] = from[place_in_line(array, first) + i];
}

}  // namespace mgpu::cuda
