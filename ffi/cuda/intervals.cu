// Interval expand, gather, scatter and move on CUDA.
#include "cuda/move_rows.cuh"
#include "operands/intervals.h"
#include "operations.h"

namespace mgpu::cuda {

namespace {

struct ExpandRoute {
  static constexpr bool fills = true;
  Rows values;
  Fill fill;
  Rows out;

  template <int kRowBytes, typename Tile>
  __device__ char* out_row(const Tile& tile, int i) const {
    return out.of_problem(tile.problem) + (tile.begin + i) * width_of<kRowBytes>(out);
  }

  template <int kRowBytes, typename Tile>
  __device__ auto of_tile(const Tile& tile) const {
    const char* const rows = values.of_problem(tile.problem) + tile.before * width_of<kRowBytes>(values);
    char* const out_rows = out_row<kRowBytes>(tile, 0);
    return [=, this](int i, auto mark, bool is_made) {
      return RowMove{rows + mark * width_of<kRowBytes>(values), out_rows + i * width_of<kRowBytes>(out), is_made, true};
    };
  }
};

// Values of one word need no addresses to be kept: the outputs are written 16 bytes at a time.
template <typename Word>
__global__ void __launch_bounds__(kWorkThreads)
    expand_words(const __grid_constant__ WorkList work, const __grid_constant__ WorkTiles tiles,
                 const __grid_constant__ ExpandRoute route) {
  using Tile = TileWork<kWorkThreads, work_items(false)>;
  __shared__ typename Tile::Shared shared;
  const Tile tile(shared, work, tiles);
  const Word fill = fill_word<Word>(route.fill.of_problem(tile.problem), route.fill.element_bytes);
  const Word* const values = reinterpret_cast<const Word*>(route.values.of_problem(tile.problem));
  Word* const out = reinterpret_cast<Word*>(route.out.of_problem(tile.problem)) + tile.begin;
  tile.store(out, fill, [&](int, int64_t object) { return values[object]; });
}

// int32 offsets or starts, read as int64: half the instructions of an IndexVector.
struct NarrowVector {
  const int32_t* data;
  explicit MGPU_HOST_DEVICE NarrowVector(IndexVector vector) : data(static_cast<const int32_t*>(vector.data)) {}
  __device__ int64_t operator[](int64_t i) const { return data[i]; }
  __device__ NarrowVector from(int64_t i) const { return NarrowVector(IndexVector{data + i, false}); }
};

// Gathers, scatters or both. Vector reads offsets and starts.
template <bool kGathers, bool kScatters, typename Vector>
struct MoveRoute {
  static constexpr bool fills = !kScatters;
  Rows x;
  Vector gather_starts;
  int64_t gather_stride;
  Vector scatter_starts;
  int64_t scatter_stride;
  Vector offsets;
  int64_t offsets_stride;
  Fill fill;
  Rows out;

  explicit MoveRoute(const IntervalMoveOperands& operands)
      : x(operands.x),
        gather_starts(operands.gather.at),
        gather_stride(operands.gather.stride),
        scatter_starts(operands.scatter.at),
        scatter_stride(operands.scatter.stride),
        offsets(operands.work.offsets),
        offsets_stride(operands.work.offsets_stride),
        fill(operands.fill),
        out(operands.out) {}

  template <int kRowBytes, typename Tile>
  __device__ char* out_row(const Tile& tile, int i) const {
    return out.of_problem(tile.problem) + (tile.begin + i) * width_of<kRowBytes>(out);
  }

  // Offsets and starts are read for every output, whether an object made it or not: without a branch, the reads of many
  // outputs wait for memory together.
  template <int kRowBytes, typename Tile>
  __device__ auto of_tile(const Tile& tile) const {
    const Vector gather = gather_starts.from(tile.problem * gather_stride + tile.before);
    const Vector scatter = scatter_starts.from(tile.problem * scatter_stride + tile.before);
    const Vector starts = offsets.from(tile.problem * offsets_stride + tile.before);
    const char* const rows = x.of_problem(tile.problem);
    char* const out_rows = out.of_problem(tile.problem);
    return [=, this, &tile](int i, auto mark, bool is_made) {
      const auto object = tile.mark_to_read(mark);
      const int64_t position = tile.begin + i;
      const int64_t start = starts[object];
      const int64_t source = kGathers ? gather[object] - start + position : position;
      const int64_t target = kScatters ? scatter[object] - start + position : position;
      const bool has_source = is_made && static_cast<uint64_t>(source) < static_cast<uint64_t>(x.count);
      const bool has_target = !kScatters || static_cast<uint64_t>(target) < static_cast<uint64_t>(out.count);
      return RowMove{rows + source * width_of<kRowBytes>(x), out_rows + target * width_of<kRowBytes>(out), has_source,
                     has_target && (fills || has_source)};
    };
  }
};

template <bool kGathers, bool kScatters>
void move(const Call& call, const IntervalMoveOperands& operands, cudaStream_t stream) {
  const bool wide = operands.work.offsets.wide || operands.gather.at.wide || operands.scatter.at.wide;
  if (wide) return move_rows(call, operands, MoveRoute<kGathers, kScatters, IndexVector>(operands), stream);
  move_rows(call, operands, MoveRoute<kGathers, kScatters, NarrowVector>(operands), stream);
}

}  // namespace

void interval_expand(const Call& call, cudaStream_t stream) {
  const IntervalExpandOperands operands(call);
  const ExpandRoute route{operands.values, operands.fill, operands.out};
  const auto launch = [&](auto word, const WorkList& work, const WorkTiles& tiles, unsigned blocks) {
    expand_words<decltype(word)><<<blocks, kWorkThreads, 0, stream>>>(work, tiles, route);
  };
  move_rows(call, operands, route, stream, launch);
}

void interval_gather(const Call& call, cudaStream_t stream) {
  move<true, false>(call, interval_gather_operands(call), stream);
}

void interval_move(const Call& call, cudaStream_t stream) {
  const IntervalMoveOperands operands = interval_move_operands(call);
  const Array& result = call.results[0];
  if (operands.into) {
    check(call, cudaMemcpyAsync(result.data, operands.into, result.bytes(), cudaMemcpyDeviceToDevice, stream));
  }
  operands.gather.at.data ? move<true, true>(call, operands, stream) : move<false, true>(call, operands, stream);
}

}  // namespace mgpu::cuda
