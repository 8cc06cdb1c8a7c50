// One pass over the keys finds the heads and counts them by tile; a second kernel sums up the counts; a third writes
// the heads to their slots. A tile with few heads stores their positions and keys. A tile with many stores a bit per
// key, and its keys are read again.
#pragma once

#include "cuda/block/tail.cuh"
#include "cuda/ptx.cuh"
#include "ops/run_heads/plan.h"
#include "ops/tile_counts/kernels.cuh"

namespace mgpu::cuda::run_marking {

constexpr int kThreads = run_heads_shape(4).threads;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAllLanes = 0xffffffffu;

template <typename Order>
struct RunTask {
  using Word = typename Order::Word;
  static constexpr int kTile = run_heads_shape(sizeof(Word)).tile();
  static constexpr int kTileWords = kTile / 32;
  static constexpr int kKept = kept_heads(kTile);

  const Word* keys;
  bool aligned;  // whether each row is aligned to 16 bytes
  Order order;
  Segments rows;
  int64_t row_tiles;
  int64_t size;
  IndexResult heads;
  Word* firsts;
  IndexResult covered;
  IndexResult runs;
  RunHeadsOperands::Scratch scratch;

  __device__ __forceinline__ int64_t row_of(int64_t tile) const { return rows.rows == 1 ? 0 : tile / row_tiles; }
  __device__ __forceinline__ uint16_t* places() const { return reinterpret_cast<uint16_t*>(scratch.bits); }
  __device__ __forceinline__ Word* kept_keys() const { return static_cast<Word*>(scratch.kept_keys); }
};

// The warp's bitmap of heads: each of the first kVector * kRows lanes gets the bits of 32 neighbouring keys.
// `bits` has the lane's own heads: kVector bits for each of its kRows vectors, from bit 32 / kRows * row on.
// In a butterfly shuffle, a lane with several vectors keeps the bits of half of them and sends the other bits.
template <int kVector, int kRows>
__device__ __forceinline__ unsigned words_of_bits(unsigned bits) {
  constexpr int kWordLanes = 32 / kVector;  // the lanes whose bits make a word
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int distance = 1; distance < kWordLanes; distance *= 2) {
    const bool is_upper = lane & distance;
    unsigned own = bits, other = bits;
    if (distance < kRows) {
      const int room = 32 / kRows * distance;  // the bits from vector to vector
      const unsigned even_rows = room == 8 ? 0x00ff00ffu : 0x0000ffffu;
      own = (is_upper ? bits >> room : bits) & even_rows;
      other = (is_upper ? bits : bits >> room) & even_rows;
    }
    other = __shfl_xor_sync(kAllLanes, other, distance);
    bits = is_upper ? other | own << kVector * distance : own | other << kVector * distance;
  }
  const unsigned word = __shfl_sync(kAllLanes, bits, lane % kVector * kWordLanes + lane / kVector);
  return lane < kRows * kVector ? word : 0;
}

// One block per tile. A lane's keys are vectors of 16 bytes, in rows of 32 lanes.
template <typename Order>
__global__ void __launch_bounds__(kThreads) mark_heads(RunTask<Order> task) {
  start_next_kernel();
  using Word = typename Order::Word;
  using Class = std::conditional_t<sizeof(Word) == 8, uint64_t, uint32_t>;  // keys that compare equal have one class
  using Task = RunTask<Order>;
  using Vector = Vector<Word>;
  constexpr int kVector = Vector::kItems;
  constexpr int kRows = Task::kTile / kThreads / kVector;
  constexpr int kWarpWords = Task::kTileWords / kWarps;
  __shared__ int warp_heads[kWarps];

  const int64_t tile = blockIdx.x;
  const int64_t row = task.row_of(tile);
  const int64_t tile_in_row = tile - row * task.row_tiles;
  const int64_t begin = tile_in_row * Task::kTile;
  const int live = static_cast<int>(clamp<int64_t>(task.rows.live(row) - begin, 0, Task::kTile));
  const Word* const keys = task.keys + row * task.rows.length + begin;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first = (warp * kRows * kWarp + lane) * kVector;

  Vector vectors[kRows];
  if (task.aligned && live == Task::kTile) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) vectors[row] = Vector::load(keys, first + row * kWarp * kVector);
  } else {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const int place = first + row * kWarp * kVector + k;
        vectors[row].items[k] = place < live ? keys[place] : Word{};
      }
    }
  }
  const bool has_before = lane == 0 && first < live && (warp != 0 || tile_in_row != 0);
  const Word before_warp = has_before ? keys[first - 1] : Word{};

  const auto class_of = [&](Word key) { return static_cast<Class>(task.order.rank(task.order.encode(key))); };
  Class before_row = class_of(before_warp);  // used by lane 0 only
  unsigned bits = 0;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    Class classes[kVector];
#pragma unroll
    for (int k = 0; k < kVector; ++k) classes[k] = class_of(vectors[row].items[k]);
    const Class below = shuffle(classes[kVector - 1], (lane + kWarp - 1) % kWarp);
    Class before = lane == 0 ? before_row : below;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (classes[k] != before) bits |= 1u << (32 / kRows * row + k);
      before = classes[k];
    }
    before_row = below;
  }
  unsigned word = words_of_bits<kVector, kRows>(bits);
  const int tile_word = warp * kWarpWords + lane;
  if (tile_in_row == 0 && threadIdx.x == 0) word |= 1;
  if (live < Task::kTile) word &= static_cast<unsigned>((uint64_t{1} << clamp(live - tile_word * 32, 0, 32)) - 1);

  const auto in_block = sum_block<kWarps>(warp_heads, __popc(word));
  if (warp == 0) set_tile_count(task.scratch.tiles, row, tile_in_row, task.row_tiles, in_block.all);
  if (in_block.all > Task::kKept) {
    if (lane < kWarpWords) task.scratch.bits[tile * Task::kTileWords + tile_word] = word;
    return;
  }
  uint16_t* const places = task.places() + tile * Task::kKept;
  Word* const kept_keys = task.kept_keys() + tile * Task::kKept;
  for (int rank = in_block.before; word != 0; word &= word - 1, ++rank) {
    const int place = tile_word * 32 + __ffs(word) - 1;
    places[rank] = static_cast<uint16_t>(place);
    kept_keys[rank] = keys[place];
  }
}

// Sets `covered` to the number of live items, if all runs fit the result. Otherwise write_heads sets it.
struct SetRuns {
  IndexResult runs;
  IndexResult covered;
  Segments rows;
  int64_t size;

  __device__ void operator()(int64_t row, int64_t all) const {
    runs.set(row, all);
    if (all <= size) covered.set(row, rows.live(row));
  }
};

// One block per tile, and one thread per word that mark_heads stored, of 32 bits or of two positions.
template <typename Order>
__global__ void __launch_bounds__(RunTask<Order>::kTileWords, 2048 / RunTask<Order>::kTileWords)
    write_heads(RunTask<Order> task) {
  wait_for_last_kernel();
  start_next_kernel();  // pad_tails reads only the output of sum_tiles, which is complete
  using Task = RunTask<Order>;
  __shared__ int warp_heads[Task::kTileWords / kWarp];
  __shared__ __align__(4) uint16_t places[Task::kTile];

  const int64_t tile = blockIdx.x;
  unsigned word = task.scratch.bits[tile * Task::kTileWords + threadIdx.x];
  const int64_t row = task.row_of(tile);
  const int64_t tile_in_row = tile - row * task.row_tiles;
  const TileCounts& tiles = task.scratch.tiles;
  const int heads = tiles.counts[row * tiles.row_groups * kTileGroup + tile_in_row];
  const int64_t before = before_tile(tiles, row, tile_in_row);
  if (heads == 0 || before > task.size) return;
  const bool are_few = heads <= Task::kKept;
  if (are_few) {
    reinterpret_cast<unsigned*>(places)[threadIdx.x] = word;
  } else {
    int rank = sum_block<Task::kTileWords / kWarp>(warp_heads, __popc(word)).before;
    for (; word != 0; word &= word - 1) {
      places[rank++] = static_cast<uint16_t>(threadIdx.x * 32 + __ffs(word) - 1);
    }
  }
  __syncthreads();

  const int64_t begin = tile_in_row * Task::kTile;
  const auto* const keys = are_few ? task.kept_keys() + tile * Task::kKept : task.keys + row * task.rows.length + begin;
  const int64_t room = task.size - before;
  const int64_t slot = row * task.size + before;
  for (int i = threadIdx.x; i < minimum<int64_t>(heads, room); i += Task::kTileWords) {
    const int place = places[i];
    task.heads.set(slot + i, begin + place);
    task.firsts[slot + i] = keys[are_few ? i : place];
  }
  if (threadIdx.x == 0 && room < heads) task.covered.set(row, begin + places[room]);
}

// May run at the same time as the last blocks of write_heads, which writes other slots.
template <typename Word>
__global__ void __launch_bounds__(kTailThreads)
    pad_tails(int64_t rows, int64_t length, int64_t size, IndexVector runs, IndexResult heads, Word* firsts) {
  for_each_tail_slot(
      rows, size, [&](int64_t row) { return runs[row]; },
      [&](int64_t row, int64_t slot) {
        heads.set(row * size + slot, length);
        firsts[row * size + slot] = 0;
      });
  wait_for_last_kernel();
}

}  // namespace mgpu::cuda::run_marking
