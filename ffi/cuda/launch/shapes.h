// The shapes of kernels that need more shared memory than every device grants without a request. A launch chooses its
// shape by what the device grants; the test of all shapes chooses by the limits of various devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/common/dispatch.h"

namespace mgpu::cuda {

struct KernelShape {
  int64_t bytes;        // the shared memory that a block takes
  int64_t least_limit;  // the shared memory that a device must grant for the shape to be chosen; at least `bytes`
};

struct KernelShapes {
  std::string kernel;
  std::vector<KernelShape> shapes;  // the first that fits is chosen
  bool is_optional = false;         // if none fits, other kernels do the work
};
using KernelShapeList = std::vector<KernelShapes>;

// These functions use `call` only for errors.
void list_count_bins_shapes(const Call& call, KernelShapeList& list);
void list_group_search_shapes(const Call& call, KernelShapeList& list);
void list_hash_groups_shapes(const Call& call, KernelShapeList& list);
void list_merge_shapes(const Call& call, KernelShapeList& list);
void list_order_statistics_shapes(const Call& call, KernelShapeList& list);
void list_scan_shapes(const Call& call, KernelShapeList& list);
void list_segmented_search_shapes(const Call& call, KernelShapeList& list);
void list_segmented_sort_shapes(const Call& call, KernelShapeList& list);
void list_sets_shapes(const Call& call, KernelShapeList& list);
void list_sorted_search_shapes(const Call& call, KernelShapeList& list);
void list_top_k_shapes(const Call& call, KernelShapeList& list);

template <typename Visit>
void for_each_kind(const Call& call, const std::string& kernel, std::initializer_list<int> payload_widths,
                   Visit visit) {
  for (DType keys : {DType::u8, DType::u16, DType::u32, DType::u64, DType::f16, DType::f32, DType::f64}) {
    for (int width : payload_widths) {
      const std::string name =
          kernel + " " + std::string(dtype_name(keys)) + (width == 0 ? "" : ", payload of " + std::to_string(width));
      dispatch_order(call, keys, false, [&](auto order) {
        dispatch_payload(call, width, [&](auto payload) { visit(order, payload, name); });
      });
    }
  }
}

}  // namespace mgpu::cuda
