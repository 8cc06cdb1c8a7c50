// The library of the CUDA kernels: handlers over their object files. Loads without a driver.
#include <algorithm>
#include <string>
#include <vector>

#include "cuda/launch/shapes.h"
#include "jit/compiler.h"
#include "jit/images.h"
#include "runtime/check.h"
#include "runtime/handler.h"
#include "runtime/library.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

namespace cuda {
void check_precondition(const Call& call, std::string_view expected, CUstream_st* stream);
int driver_version();
}  // namespace cuda

namespace {

#define MGPU_HANDLER(name)                                                                                \
  ffi::Error name##_handler(CUstream_st* stream, ffi::RemainingArgs operands, ffi::RemainingRets results, \
                            ffi::Dictionary attributes) {                                                 \
    return run_call(#name, operands, results, attributes, [&](Call& call) {                               \
      take_workspace(call);                                                                               \
      cuda::name(call, stream);                                                                           \
    });                                                                                                   \
  }                                                                                                       \
  XLA_FFI_DEFINE_HANDLER(                                                                                 \
      name##_ffi, name##_handler,                                                                         \
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<CUstream_st*>>().RemainingArgs().RemainingRets().Attrs(),  \
      {ffi::Traits::kCmdBufferCompatible});
MGPU_OPERATIONS(MGPU_HANDLER)
MGPU_CUDA_OPERATIONS(MGPU_HANDLER)
#undef MGPU_HANDLER

// XLA instantiates a call when it loads a program, and records its execution alone.
#define MGPU_HANDLER(name)                                                                                \
  ffi::Error name##_instantiate(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary attributes) {     \
    return prepare_call(#name, attributes, cuda::prepare_##name);                                         \
  }                                                                                                       \
  ffi::Error name##_handler(CUstream_st* stream, ffi::RemainingArgs operands, ffi::RemainingRets results, \
                            ffi::Dictionary attributes) {                                                 \
    return run_call(#name, operands, results, attributes, [&](Call& call) {                               \
      take_workspace(call);                                                                               \
      call.function = &function_of(attribute_text(attributes, "function"));                               \
      cuda::name(call, stream);                                                                           \
    });                                                                                                   \
  }                                                                                                       \
  XLA_FFI_DEFINE_HANDLER(name##_instantiate_ffi, name##_instantiate,                                      \
                         ffi::Ffi::BindInstantiate().RemainingArgs().RemainingRets().Attrs());            \
  XLA_FFI_DEFINE_HANDLER(                                                                                 \
      name##_ffi, name##_handler,                                                                         \
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<CUstream_st*>>().RemainingArgs().RemainingRets().Attrs(),  \
      {ffi::Traits::kCmdBufferCompatible});
MGPU_FUNCTION_OPERATIONS(MGPU_HANDLER)
#undef MGPU_HANDLER

// Waits for the device, so it must not be recorded into a CUDA graph.
ffi::Error check_handler(CUstream_st* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
                         ffi::Dictionary attributes) {
  return run_call("check", operands, results, attributes, [&](const Call& call) {
    cuda::check_precondition(call, attribute_text(attributes, "expected"), stream);
  });
}
XLA_FFI_DEFINE_HANDLER(
    check_ffi, check_handler,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<CUstream_st*>>().RemainingArgs().RemainingRets().Attrs());

// [kernel, [[bytes of shared memory, what a device has to grant a block for the shape to be taken]], is_optional] for
// each kernel that needs more than every device grants unasked.
std::string json_kernel_shapes() {
  struct None final : Attributes {
    int64_t operator[](std::string_view) const override { return 0; }
  } none;
  const Call call{"kernel_shapes", {}, {}, none};
  cuda::KernelShapeList list;
  cuda::list_count_bins_shapes(call, list);
  cuda::list_group_search_shapes(call, list);
  cuda::list_merge_shapes(call, list);
  cuda::list_order_statistics_shapes(call, list);
  cuda::list_scan_shapes(call, list);
  cuda::list_segmented_sort_shapes(call, list);
  cuda::list_sets_shapes(call, list);
  cuda::list_sort_columns_shapes(call, list);
  cuda::list_sorted_search_shapes(call, list);
  cuda::list_top_k_shapes(call, list);
  return json_list(list, [](const cuda::KernelShapes& kernel) {
    const std::string shapes = json_list(
        kernel.shapes, [](const cuda::KernelShape& shape) { return json_pair(shape.bytes, shape.least_limit); });
    return JsonParts('[').add(json(kernel.kernel)).add(shapes).add(kernel.is_optional ? "true" : "false").done(']');
  });
}

}  // namespace
}  // namespace mgpu

const char* jax_mgpu_describe(const char* what) {
  using namespace mgpu;
  const std::string_view name(what);
  if (name == "library") {
    return keep(
        json_description({{"architectures", json(MGPU_CUDA_ARCHITECTURES)}, {"compiler", json(MGPU_CUDA_COMPILER)}},
                         XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR));
  }
  if (name == "compiler_problem") return keep(json(cuda::compiler_problem()));       // nothing where NVRTC can be used
  if (name == "driver_version") return keep(json(int64_t{cuda::driver_version()}));  // of CUDA, as 12040
  if (name == "compiled_functions") {
    const auto [compiled, read] = compiled::image_counts();  // in this process, and read from the disk
    return keep(json_pair(compiled, read));
  }
  if (name == "kernel_shapes") return keep(json_kernel_shapes());
  return nullptr;
}

const mgpu::HandlerEntry* jax_mgpu_handlers() {
  using namespace mgpu;
#define MGPU_ENTRY(name) {#name, "execute", reinterpret_cast<void*>(name##_ffi)},
#define MGPU_ENTRIES(name) {#name, "instantiate", reinterpret_cast<void*>(name##_instantiate_ffi)}, MGPU_ENTRY(name)
  static const HandlerEntry table[] = {MGPU_ENTRY(check) MGPU_OPERATIONS(MGPU_ENTRY) MGPU_CUDA_OPERATIONS(MGPU_ENTRY)
                                           MGPU_FUNCTION_OPERATIONS(MGPU_ENTRIES){nullptr, nullptr, nullptr}};
#undef MGPU_ENTRIES
#undef MGPU_ENTRY
  return table;
}

// Where NVRTC is looked for: folders, one a line.
MGPU_EXPORT void jax_mgpu_set_compiler_folders(const char* lines) {
  std::vector<std::string> folders;
  std::string_view rest(lines);
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (end > 0) folders.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  mgpu::cuda::set_compiler_folders(folders);
}
