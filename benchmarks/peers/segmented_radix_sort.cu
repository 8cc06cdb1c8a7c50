#include <cub/device/device_segmented_radix_sort.cuh>

#include "peers.cuh"

namespace mgpu {

// keys [n], offsets [segments + 1], and values [n] or nothing.
void peers::segmented_radix_sort(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int items = length(call, in[0]);
  const int segments = length(call, in[1]) - 1;
  expect_type(call, in[0], DType::u32);
  expect_type(call, in[1], DType::s32);
  const auto* offsets = in[1].as<const int32_t>();
  run_cub(call, scratch, [&](void* data, size_t& bytes) {
    if (in.size() == 2) {
      return cub::DeviceSegmentedRadixSort::SortKeys(data, bytes, in[0].as<const uint32_t>(), out[0].as<uint32_t>(),
                                                     items, segments, offsets, offsets + 1, 0, 32, stream);
    }
    return cub::DeviceSegmentedRadixSort::SortPairs(data, bytes, in[0].as<const uint32_t>(), out[0].as<uint32_t>(),
                                                    in[2].as<const uint32_t>(), out[1].as<uint32_t>(), items, segments,
                                                    offsets, offsets + 1, 0, 32, stream);
  });
}

}  // namespace mgpu
