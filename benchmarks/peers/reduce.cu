#include <cub/device/device_reduce.cuh>
#include <cub/device/device_segmented_reduce.cuh>

#include "peers.cuh"

namespace mgpu {

void peers::sum(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int items = length(call, in[0]);
  visit_type<int32_t, float, __nv_bfloat16>(call, in[0], [&](auto value) {
    using Value = decltype(value);
    run_cub(call, scratch, [&](void* data, size_t& bytes) {
      return cub::DeviceReduce::Reduce(data, bytes, in[0].as<const Value>(), out[0].as<Value>(), items,
                                       ::cuda::std::plus<Accumulator<Value>>{}, Accumulator<Value>{0}, stream);
    });
  });
}

// Results: the maximum and its index, both scalars.
void peers::argmax(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int items = length(call, in[0]);
  visit_type<int32_t, float>(call, in[0], [&](auto value) {
    using Value = decltype(value);
    run_cub(call, scratch, [&](void* data, size_t& bytes) {
      return cub::DeviceReduce::ArgMax(data, bytes, in[0].as<const Value>(), out[0].as<Value>(), out[1].as<int32_t>(),
                                       items, stream);
    });
  });
}

// Operands: values [n], offsets [segments + 1].
void peers::segmented_reduce_sum(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int segments = length(call, in[1]) - 1;
  expect_type(call, in[1], DType::s32);
  const auto* offsets = in[1].as<const int32_t>();
  visit_type<int32_t, float>(call, in[0], [&](auto value) {
    using Value = decltype(value);
    run_cub(call, scratch, [&](void* data, size_t& bytes) {
      return cub::DeviceSegmentedReduce::Sum(data, bytes, in[0].as<const Value>(), out[0].as<Value>(), segments,
                                             offsets, offsets + 1, stream);
    });
  });
}

// Operands: keys [n], values [n]. Results: keys, sums, count.
void peers::reduce_by_key(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int items = length(call, in[0]);
  expect_type(call, in[0], DType::u32);
  visit_type<int32_t, float>(call, in[1], [&](auto value) {
    using Value = decltype(value);
    run_cub(call, scratch, [&](void* data, size_t& bytes) {
      return cub::DeviceReduce::ReduceByKey(data, bytes, in[0].as<const uint32_t>(), out[0].as<uint32_t>(),
                                            in[1].as<const Value>(), out[1].as<Value>(), out[2].as<int32_t>(),
                                            ::cuda::std::plus<>{}, items, stream);
    });
  });
}

}  // namespace mgpu
