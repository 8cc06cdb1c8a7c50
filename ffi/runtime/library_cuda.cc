// The library of the CUDA kernels. It loads without a driver.
#include <deque>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/launch/shapes.h"
#include "jit/compiler.h"
#include "jit/images.h"
#include "runtime/check.h"
#include "runtime/description.h"
#include "runtime/handler.h"
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

// XLA instantiates a call when it loads a program, and records only its execution in a CUDA graph.
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

// This handler waits for the device, so it must not be recorded into a CUDA graph.
ffi::Error check_handler(CUstream_st* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
                         ffi::Dictionary attributes) {
  return run_call("check", operands, results, attributes, [&](const Call& call) {
    cuda::check_precondition(call, attribute_text(attributes, "expected"), stream);
  });
}
XLA_FFI_DEFINE_HANDLER(
    check_ffi, check_handler,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<CUstream_st*>>().RemainingArgs().RemainingRets().Attrs());

struct CudaDescription : Description {
  CudaDescription() : Description(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR) {
    static constexpr FactEntry facts[] = {{"architectures", MGPU_CUDA_ARCHITECTURES}, {"compiler", MGPU_CUDA_COMPILER}};
    table.facts = {facts, std::size(facts)};
#define MGPU_ENTRY(name) {#name, "execute", reinterpret_cast<void*>(name##_ffi)},
#define MGPU_ENTRIES(name) {#name, "instantiate", reinterpret_cast<void*>(name##_instantiate_ffi)}, MGPU_ENTRY(name)
    static const HandlerEntry handlers[] = {MGPU_ENTRY(check) MGPU_OPERATIONS(MGPU_ENTRY) MGPU_CUDA_OPERATIONS(
        MGPU_ENTRY) MGPU_FUNCTION_OPERATIONS(MGPU_ENTRIES)};
#undef MGPU_ENTRIES
#undef MGPU_ENTRY
    table.handlers = {handlers, std::size(handlers)};
    add_kernel_shapes();
    table.compiler_problem = [] {
      static thread_local std::string problem;
      return (problem = cuda::compiler_problem()).c_str();
    };
    table.set_compiler_folders = [](List<const char*> folders) {
      cuda::set_compiler_folders({folders.begin(), folders.end()});
    };
    table.driver_version = [] { return int64_t{cuda::driver_version()}; };
    table.compiled_functions = [](int64_t& compiled, int64_t& read) {
      std::tie(compiled, read) = compiled::image_counts();
    };
  }

 private:
  void add_kernel_shapes() {
    struct None final : Attributes {
      int64_t operator[](std::string_view) const override { return 0; }
    } none;
    const Call call{"kernel_shapes", {}, {}, none};
    cuda::KernelShapeList all;
    cuda::list_count_bins_shapes(call, all);
    cuda::list_group_search_shapes(call, all);
    cuda::list_hash_groups_shapes(call, all);
    cuda::list_merge_shapes(call, all);
    cuda::list_order_statistics_shapes(call, all);
    cuda::list_scan_shapes(call, all);
    cuda::list_segmented_search_shapes(call, all);
    cuda::list_segmented_sort_shapes(call, all);
    cuda::list_sets_shapes(call, all);
    cuda::list_sorted_search_shapes(call, all);
    cuda::list_top_k_shapes(call, all);
    for (const cuda::KernelShapes& kernel : all) {
      std::vector<KernelShapeEntry>& shapes = shapes_.emplace_back();
      for (const cuda::KernelShape& shape : kernel.shapes) shapes.push_back({shape.bytes, shape.least_limit});
      kernels_.push_back({text(kernel.kernel), list(shapes), kernel.is_optional});
    }
    table.kernel_shapes = list(kernels_);
  }

  std::deque<std::vector<KernelShapeEntry>> shapes_;
  std::vector<KernelShapesEntry> kernels_;
};

}  // namespace
}  // namespace mgpu

const mgpu::LibraryTable* jax_mgpu_library() {
  static const mgpu::CudaDescription description;
  return &description.table;
}
