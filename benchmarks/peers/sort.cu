#include <cub/device/device_merge_sort.cuh>
#include <cub/device/device_radix_sort.cuh>

#include "peers.cuh"

namespace mgpu {

// Operands: keys [n], and values [n] or nothing.
void peers::merge_sort(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int items = length(call, in[0]);
  visit_type<uint32_t, uint64_t, float>(call, in[0], [&](auto key) {
    using Key = decltype(key);
    run_cub(call, scratch, [&](void* data, size_t& bytes) {
      if (in.size() == 1) {
        return cub::DeviceMergeSort::SortKeysCopy(data, bytes, in[0].as<const Key>(), out[0].as<Key>(), items,
                                                  ::cuda::std::less<>{}, stream);
      }
      return cub::DeviceMergeSort::SortPairsCopy(data, bytes, in[0].as<const Key>(), in[1].as<const uint32_t>(),
                                                 out[0].as<Key>(), out[1].as<uint32_t>(), items, ::cuda::std::less<>{},
                                                 stream);
    });
  });
}

// Operands: keys [n], and values [n] or nothing.
void peers::radix_sort(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int items = length(call, in[0]);
  visit_type<uint32_t, uint64_t, float>(call, in[0], [&](auto key) {
    using Key = decltype(key);
    run_cub(call, scratch, [&](void* data, size_t& bytes) {
      constexpr int bits = 8 * sizeof(Key);
      if (in.size() == 1) {
        return cub::DeviceRadixSort::SortKeys(data, bytes, in[0].as<const Key>(), out[0].as<Key>(), items, 0, bits,
                                              stream);
      }
      return cub::DeviceRadixSort::SortPairs(data, bytes, in[0].as<const Key>(), out[0].as<Key>(),
                                             in[1].as<const uint32_t>(), out[1].as<uint32_t>(), items, 0, bits, stream);
    });
  });
}

}  // namespace mgpu
