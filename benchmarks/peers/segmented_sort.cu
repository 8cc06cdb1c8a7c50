#include <cub/device/device_segmented_radix_sort.cuh>
#include <cub/device/device_segmented_sort.cuh>

#include "peers.cuh"

namespace mgpu {

namespace {

// Operands: keys [n], offsets [segments + 1], and values [n] or nothing. `range` is what the algorithm takes after the
// offsets.
template <typename Algorithm>
void sort_segments(const Call& call, cudaStream_t stream, peers::Scratch& scratch, auto... range) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int items = peers::length(call, in[0]);
  const int segments = peers::length(call, in[1]) - 1;
  peers::expect_type(call, in[0], DType::u32);
  peers::expect_type(call, in[1], DType::s32);
  const auto* offsets = in[1].as<const int32_t>();
  peers::run_cub(call, scratch, [&](void* data, size_t& bytes) {
    const auto* keys = in[0].as<const uint32_t>();
    auto* sorted = out[0].as<uint32_t>();
    if (in.size() == 2) {
      return Algorithm::SortKeys(data, bytes, keys, sorted, items, segments, offsets, offsets + 1, range..., stream);
    }
    return Algorithm::SortPairs(data, bytes, keys, sorted, in[2].as<const uint32_t>(), out[1].as<uint32_t>(), items,
                                segments, offsets, offsets + 1, range..., stream);
  });
}

}  // namespace

void peers::segmented_radix_sort(const Call& call, cudaStream_t stream, Scratch& scratch) {
  sort_segments<cub::DeviceSegmentedRadixSort>(call, stream, scratch, 0, 32);
}

void peers::segmented_sort(const Call& call, cudaStream_t stream, Scratch& scratch) {
  sort_segments<cub::DeviceSegmentedSort>(call, stream, scratch);
}

}  // namespace mgpu
