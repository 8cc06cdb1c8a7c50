#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_copy.cuh>

#include "peers.cuh"

namespace mgpu {

namespace {

template <typename Item>
struct StartOf {
  Item* base;
  const int32_t* starts;
  __host__ __device__ Item* operator()(int32_t interval) const { return base + starts[interval]; }
};

}  // namespace

// Operands: items [n], starts to read from [intervals], starts to write to [intervals], lengths [intervals].
void peers::batched_copy(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int intervals = length(call, in[1]);
  expect_type(call, in[0], DType::u32);
  for (int i = 1; i < 4; ++i) expect_type(call, in[i], DType::s32);
  const thrust::counting_iterator<int32_t> interval(0);
  const auto sources = thrust::make_transform_iterator(
      interval, StartOf<const uint32_t>{in[0].as<const uint32_t>(), in[1].as<const int32_t>()});
  const auto targets =
      thrust::make_transform_iterator(interval, StartOf<uint32_t>{out[0].as<uint32_t>(), in[2].as<const int32_t>()});
  run_cub(call, scratch, [&](void* data, size_t& bytes) {
    return cub::DeviceCopy::Batched(data, bytes, sources, targets, in[3].as<const int32_t>(), intervals, stream);
  });
}

}  // namespace mgpu
