#include <cub/device/device_merge.cuh>

#include "peers.cuh"

namespace mgpu {

// Operands: a [n], b [m], and their values [n] and [m] or nothing.
void peers::merge(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int a_items = length(call, in[0]);
  const int b_items = length(call, in[1]);
  visit_type<uint32_t, uint64_t, float>(call, in[0], [&](auto key) {
    using Key = decltype(key);
    run_cub(call, scratch, [&](void* data, size_t& bytes) {
      const auto* a = in[0].as<const Key>();
      const auto* b = in[1].as<const Key>();
      if (in.size() == 2) {
        return cub::DeviceMerge::MergeKeys(data, bytes, a, a_items, b, b_items, out[0].as<Key>(), ::cuda::std::less<>{},
                                           stream);
      }
      return cub::DeviceMerge::MergePairs(data, bytes, a, in[2].as<const uint32_t>(), a_items, b,
                                          in[3].as<const uint32_t>(), b_items, out[0].as<Key>(), out[1].as<uint32_t>(),
                                          ::cuda::std::less<>{}, stream);
    });
  });
}

}  // namespace mgpu
