#include <thrust/binary_search.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_output_iterator.h>

#include "thrust_policy.cuh"

namespace mgpu {

namespace {

struct MinusOne {
  __host__ __device__ int32_t operator()(int32_t index) const { return index - 1; }
};

}  // namespace

// Operands: needles [m], haystack [n]; attribute right. Result: insertion points [m].
void peers::sorted_search(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int needles = length(call, in[0]);
  const int items = length(call, in[1]);
  ThrustAllocator allocator{scratch};
  const auto policy = thrust_policy(allocator, stream);
  visit_type<uint32_t, float>(call, in[0], [&](auto key) {
    using Key = decltype(key);
    const auto* first = in[1].as<const Key>();
    const auto* needle = in[0].as<const Key>();
    auto* result = out[0].as<int32_t>();
    if (call.attributes["right"]) {
      thrust::upper_bound(policy, first, first + items, needle, needle + needles, result);
    } else {
      thrust::lower_bound(policy, first, first + items, needle, needle + needles, result);
    }
  });
}

// Operand: offsets [objects]. Result: the object of each work item.
void peers::load_balance_search(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int objects = length(call, in[0]);
  const int work = length(call, out[0]);
  expect_type(call, in[0], DType::s32);
  ThrustAllocator allocator{scratch};
  const auto* offsets = in[0].as<const int32_t>();
  const thrust::counting_iterator<int32_t> item(0);
  thrust::upper_bound(thrust_policy(allocator, stream), offsets, offsets + objects, item, item + work,
                      thrust::make_transform_output_iterator(out[0].as<int32_t>(), MinusOne{}));
}

}  // namespace mgpu
