#include <thrust/set_operations.h>

#include "thrust_policy.cuh"

namespace mgpu {

// a [n], b [m], and their values [n] and [m] or nothing. Results: keys [size], values [size] where given, count.
void peers::set_symmetric_difference(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int a_items = length(call, in[0]);
  const int b_items = length(call, in[1]);
  expect_type(call, in[0], DType::u32);
  const auto* a = in[0].as<const uint32_t>();
  const auto* b = in[1].as<const uint32_t>();
  auto* keys = out[0].as<uint32_t>();
  ThrustAllocator allocator{scratch};
  const auto policy = thrust_policy(allocator, stream);
  if (in.size() == 2) {
    const auto* end = thrust::set_symmetric_difference(policy, a, a + a_items, b, b + b_items, keys);
    return store_count(call, out[1], end - keys, stream);
  }
  const auto end =
      thrust::set_symmetric_difference_by_key(policy, a, a + a_items, b, b + b_items, in[2].as<const uint32_t>(),
                                              in[3].as<const uint32_t>(), keys, out[1].as<uint32_t>());
  store_count(call, out[2], end.first - keys, stream);
}

}  // namespace mgpu
