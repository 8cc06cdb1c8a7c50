#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>

#include "peers.cuh"

namespace mgpu {

void peers::exclusive_sum(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int items = length(call, in[0]);
  visit_type<int32_t, float, __nv_bfloat16>(call, in[0], [&](auto value) {
    using Value = decltype(value);
    run_cub(call, scratch, [&](void* data, size_t& bytes) {
      return cub::DeviceScan::ExclusiveScan(data, bytes, in[0].as<const Value>(), out[0].as<Value>(),
                                            ::cuda::std::plus<Accumulator<Value>>{}, Accumulator<Value>{0}, items,
                                            stream);
    });
  });
}

void peers::inclusive_max(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int items = length(call, in[0]);
  visit_type<int32_t, float, __nv_bfloat16>(call, in[0], [&](auto value) {
    using Value = decltype(value);
    run_cub(call, scratch, [&](void* data, size_t& bytes) {
      return cub::DeviceScan::InclusiveScan(data, bytes, in[0].as<const Value>(), out[0].as<Value>(),
                                            ::cuda::maximum<>{}, items, stream);
    });
  });
}

// Operands: items [n], flags bool[n]. Results: the flagged items, their count.
void peers::select_flagged(const Call& call, cudaStream_t stream, Scratch& scratch) {
  const auto& [in, out] = std::tie(call.operands, call.results);
  const int items = length(call, in[0]);
  expect_type(call, in[1], DType::boolean);
  visit_type<uint32_t, float>(call, in[0], [&](auto value) {
    using Value = decltype(value);
    run_cub(call, scratch, [&](void* data, size_t& bytes) {
      return cub::DeviceSelect::Flagged(data, bytes, in[0].as<const Value>(), in[1].as<const bool>(),
                                        out[0].as<Value>(), out[1].as<int32_t>(), items, stream);
    });
  });
}

}  // namespace mgpu
