// The kernels of run_heads: one pass over the keys marks the heads, a bit each, and counts them by tile; the counts are
// summed up; then the heads go to their slots. A single pass with look-back waited longer than the bits take to write
// and read.
#pragma once

#include "cuda/cta/ptx.cuh"
#include "cuda/cta/scan.cuh"
#include "cuda/cta/tail.cuh"
#include "cuda/cta/vectors.cuh"
#include "operands/run_heads.h"

namespace mgpu::cuda::run_marking {

constexpr int kThreads = run_heads_shape(4).threads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kSumThreads = 1024;
constexpr int kGroupTiles = kTileGroup;
constexpr unsigned kAllLanes = 0xffffffffu;

template <typename Order>
struct RunTask {
  using Word = typename Order::Word;
  static constexpr int kTile = run_heads_shape(sizeof(Word)).tile();
  static constexpr int kTileWords = kTile / 32;

  const Word* keys;
  bool aligned;  // each row
  Order order;
  Segments rows;
  int64_t row_tiles;
  int64_t row_groups;
  int64_t size;
  IndexResult heads;
  Word* firsts;
  IndexResult covered;
  IndexResult runs;
  RunHeadsOperands::Scratch scratch;

  __device__ __forceinline__ int64_t row_of(int64_t tile) const { return rows.rows == 1 ? 0 : tile / row_tiles; }
};

// A block a tile. A lane's keys are vectors of 16 bytes, in rows of 32 lanes.
template <typename Order>
__global__ void __launch_bounds__(kThreads) mark_heads(RunTask<Order> task) {
  start_next_kernel();
  using Word = typename Order::Word;
  using Class = std::conditional_t<sizeof(Word) == 8, uint64_t, uint32_t>;  // one for all keys that compare equal
  using Task = RunTask<Order>;
  using Vector = Vector<Word>;
  constexpr int kVector = Vector::kItems;
  constexpr int kRows = Task::kTile / kThreads / kVector;
  constexpr int kWordLanes = 32 / kVector;  // whose bits make a word
  __shared__ int warp_heads[kWarps];

  const int64_t tile = blockIdx.x;
  const int64_t row = task.row_of(tile);
  const int64_t tile_in_row = tile - row * task.row_tiles;
  const int64_t begin = tile_in_row * Task::kTile;
  const int live = static_cast<int>(clamp<int64_t>(task.rows.live(row) - begin, 0, Task::kTile));
  const Word* const keys = task.keys + row * task.rows.length + begin;
  const int lane = threadIdx.x % kWarp;
  const int first_place = (static_cast<int>(threadIdx.x) / kWarp * kRows * kWarp + lane) * kVector;
  const auto place_of = [&](int row) { return first_place + row * kWarp * kVector; };

  Vector vectors[kRows];
  Word before_row[kRows];  // lane 0 loads the key before the row
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const int place = place_of(row);
    if (task.aligned && live == Task::kTile) {
      vectors[row] = Vector::load(keys, place);
    } else {
#pragma unroll
      for (int k = 0; k < kVector; ++k) vectors[row].items[k] = place + k < live ? keys[place + k] : Word{};
    }
    before_row[row] = lane == 0 && begin + place > 0 && place < live ? keys[place - 1] : Word{};
  }

  int heads = 0;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const int place = place_of(row);
    const auto class_of = [&](Word key) { return static_cast<Class>(task.order.rank(task.order.encode(key))); };
    Class classes[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k) classes[k] = class_of(vectors[row].items[k]);
    const Class below = shuffle_up(classes[kVector - 1], 1);
    Class before = lane == 0 ? class_of(before_row[row]) : below;
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (classes[k] != before) bits |= 1u << k;
      before = classes[k];
    }
    if (begin + place == 0) bits |= 1;
    if (place + kVector > live) bits &= (1u << maximum(live - place, 0)) - 1;
    heads += __popc(bits);
    bits <<= lane % kWordLanes * kVector;
#pragma unroll
    for (int distance = 1; distance < kWordLanes; distance *= 2) {
      bits |= __shfl_xor_sync(kAllLanes, bits, distance);
    }
    if (lane % kWordLanes == 0) task.scratch.head_bits[tile * Task::kTileWords + place / 32] = bits;
  }
  const auto add = [](int x, int y) { return x + y; };
  heads = fold_warp(heads, add);
  const auto in_block = scan_warps<kWarps>(warp_heads, heads, 0, add);
  const int64_t slot = tile_in_row + threadIdx.x;
  const bool last = tile_in_row == task.row_tiles - 1;
  if (threadIdx.x == 0 || (last && slot < task.row_groups * kGroupTiles)) {  // no heads past the last tile
    task.scratch.tile_heads[row * task.row_groups * kGroupTiles + slot] = threadIdx.x == 0 ? in_block.all : 0;
  }
}

// A block a row, a thread a group of tiles: the heads before each group, and the row's runs.
template <typename Order>
__global__ void __launch_bounds__(kSumThreads) sum_tiles(RunTask<Order> task) {
  wait_for_last_kernel();
  start_next_kernel();
  __shared__ int64_t warp_sums[kSumThreads / kWarp];
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int warps = blockDim.x / kWarp;
  int64_t runs = 0;
  for (int64_t begin = 0; begin < task.row_groups; begin += blockDim.x) {
    const int64_t group = begin + threadIdx.x;
    int own = 0;
    if (group < task.row_groups) {
      Vector<int> heads[kGroupTiles / 4];
#pragma unroll
      for (int i = 0; i < kGroupTiles; i += 4) {
        heads[i / 4] = Vector<int>::load(task.scratch.tile_heads, (row * task.row_groups + group) * kGroupTiles + i);
      }
#pragma unroll
      for (int i = 0; i < kGroupTiles; ++i) own += heads[i / 4].items[i % 4];
    }
    const int up_to = sum_up_to(own);
    if (lane == kWarp - 1) warp_sums[warp] = up_to;
    __syncthreads();
    const int64_t warp_sum = lane < warps ? warp_sums[lane] : 0;
    const int64_t up_to_warp = sum_up_to(warp_sum);
    const int64_t before_warp = shuffle(up_to_warp - warp_sum, warp);
    if (group < task.row_groups) {
      task.scratch.before_group[row * task.row_groups + group] = runs + before_warp + up_to - own;
    }
    runs += shuffle(up_to_warp, kWarp - 1);
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    task.runs.set(row, runs);
    if (runs <= task.size) task.covered.set(row, task.rows.live(row));
  }
}

// A thread a word of a tile's bits.
template <typename Order>
__global__ void __launch_bounds__(RunTask<Order>::kTileWords) write_heads(RunTask<Order> task) {
  wait_for_last_kernel();
  start_next_kernel();
  using Task = RunTask<Order>;
  __shared__ int warp_heads[Task::kTileWords / kWarp];
  __shared__ uint16_t places[Task::kTile];

  const int64_t tile = blockIdx.x;
  unsigned bits = task.scratch.head_bits[tile * Task::kTileWords + threadIdx.x];
  const int64_t row = task.row_of(tile);
  const int64_t tile_in_row = tile - row * task.row_tiles;
  const int64_t group = row * task.row_groups + tile_in_row / kGroupTiles;
  const int64_t before_group = task.scratch.before_group[group];
  const int lane = threadIdx.x % kWarp;
  const bool earlier = lane < tile_in_row % kGroupTiles;
  const int earlier_heads = earlier ? task.scratch.tile_heads[group * kGroupTiles + lane] : 0;
  if (before_group > task.size || !__syncthreads_or(bits)) return;
  const auto add = [](int x, int y) { return x + y; };
  const int64_t before = before_group + fold_warp(earlier_heads, add);
  const int own = __popc(bits);
  const auto in_block = sum_block<Task::kTileWords / kWarp>(warp_heads, own);
  for (int rank = in_block.before; bits != 0; bits &= bits - 1) {
    places[rank++] = static_cast<uint16_t>(threadIdx.x * 32 + __ffs(bits) - 1);
  }
  __syncthreads();

  const int64_t begin = tile_in_row * Task::kTile;
  const auto* const keys = task.keys + row * task.rows.length + begin;
  for (int i = threadIdx.x; i < in_block.all; i += Task::kTileWords) {
    const int64_t slot = before + i;
    const int place = places[i];
    if (slot < task.size) {
      task.heads.set(row * task.size + slot, begin + place);
      task.firsts[row * task.size + slot] = keys[place];
    } else if (slot == task.size) {
      task.covered.set(row, begin + place);
    }
  }
}

template <typename Word>
__global__ void __launch_bounds__(kTailThreads)
    pad_tails(int64_t rows, int64_t length, int64_t size, IndexVector runs, IndexResult heads, Word* firsts) {
  wait_for_last_kernel();
  for_each_tail_slot(
      rows, size, [&](int64_t row) { return runs[row]; },
      [&](int64_t row, int64_t slot) {
        heads.set(row * size + slot, length);
        firsts[row * size + slot] = 0;
      });
}

}  // namespace mgpu::cuda::run_marking
