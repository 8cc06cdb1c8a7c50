#include <thrust/set_operations.h>

#include "thrust_policy.cuh"

namespace mgpu {

namespace {

// Operands: a [n], b [m], and values: of a only (intersection), of both, or none. Results: keys [size], values [size]
// if given, count. `of_keys` and `of_pairs` are Thrust's algorithm without values and with them.
template <typename OfKeys, typename OfPairs>
void set_operation(const Call& call, cudaStream_t stream, peers::Scratch& scratch, OfKeys of_keys, OfPairs of_pairs) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int a_items = peers::length(call, in[0]);
  const int b_items = peers::length(call, in[1]);
  peers::expect_type(call, in[0], DType::u32);
  const auto* a = in[0].as<const uint32_t>();
  const auto* b = in[1].as<const uint32_t>();
  auto* keys = out[0].as<uint32_t>();
  peers::ThrustAllocator allocator{scratch};
  const auto policy = peers::thrust_policy(allocator, stream);
  if (in.size() == 2) {
    const auto* end = of_keys(policy, a, a + a_items, b, b + b_items, keys);
    return peers::store_count(call, out[1], end - keys, stream);
  }
  const auto* b_values = in.size() == 3 ? nullptr : in[3].as<const uint32_t>();
  const auto end = of_pairs(policy, a, a + a_items, b, b + b_items, in[2].as<const uint32_t>(), b_values, keys,
                            out[1].as<uint32_t>());
  peers::store_count(call, out[2], end.first - keys, stream);
}

}  // namespace

void peers::set_difference(const Call& call, cudaStream_t stream, Scratch& scratch) {
  set_operation(
      call, stream, scratch, [](auto... x) { return thrust::set_difference(x...); },
      [](auto... x) { return thrust::set_difference_by_key(x...); });
}

void peers::set_intersection(const Call& call, cudaStream_t stream, Scratch& scratch) {
  set_operation(
      call, stream, scratch, [](auto... x) { return thrust::set_intersection(x...); },
      [](auto policy, auto a, auto a_end, auto b, auto b_end, auto a_values, auto, auto... out) {
        return thrust::set_intersection_by_key(policy, a, a_end, b, b_end, a_values, out...);
      });
}

void peers::set_symmetric_difference(const Call& call, cudaStream_t stream, Scratch& scratch) {
  set_operation(
      call, stream, scratch, [](auto... x) { return thrust::set_symmetric_difference(x...); },
      [](auto... x) { return thrust::set_symmetric_difference_by_key(x...); });
}

void peers::set_union(const Call& call, cudaStream_t stream, Scratch& scratch) {
  set_operation(
      call, stream, scratch, [](auto... x) { return thrust::set_union(x...); },
      [](auto... x) { return thrust::set_union_by_key(x...); });
}

}  // namespace mgpu
