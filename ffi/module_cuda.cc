// The CUDA module: handlers over the kernels' object library. Imports without a driver.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "check.h"
#include "cuda/compiler.h"
#include "cuda/shapes.h"
#include "handler.h"
#include "operations.h"

namespace nb = nanobind;

namespace mgpu {

namespace cuda {
void check_precondition(const Call& call, std::string_view expected, CUstream_st* stream);
}

namespace {

#define MGPU_HANDLER(name)                                                                                      \
  ffi::Error name##_handler(CUstream_st* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,       \
                            ffi::Dictionary attributes) {                                                       \
    return run_call(#name, operands, results, attributes, [&](const Call& call) { cuda::name(call, stream); }); \
  }                                                                                                             \
  XLA_FFI_DEFINE_HANDLER(                                                                                       \
      name##_ffi, name##_handler,                                                                               \
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<CUstream_st*>>().RemainingArgs().RemainingRets().Attrs(),        \
      {ffi::Traits::kCmdBufferCompatible});
MGPU_OPERATIONS(MGPU_HANDLER)
#undef MGPU_HANDLER

// XLA instantiates a call when it loads a program, and records its execution alone.
#define MGPU_HANDLER(name)                                                                                      \
  ffi::Error name##_instantiate(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary attributes) {           \
    try {                                                                                                       \
      cuda::prepare_##name(FrameAttributes(attributes), attribute_text(attributes, "source"));                  \
      return ffi::Error::Success();                                                                             \
    } catch (const std::exception& error) {                                                                     \
      return ffi::Error::Internal(std::string(#name ": ") + error.what());                                      \
    }                                                                                                           \
  }                                                                                                             \
  ffi::Error name##_handler(CUstream_st* stream, ffi::RemainingArgs operands, ffi::RemainingRets results,       \
                            ffi::Dictionary attributes) {                                                       \
    return run_call(#name, operands, results, attributes,                                                       \
                    [&](const Call& call) { cuda::name(call, attribute_text(attributes, "source"), stream); }); \
  }                                                                                                             \
  XLA_FFI_DEFINE_HANDLER(name##_instantiate_ffi, name##_instantiate,                                            \
                         ffi::Ffi::BindInstantiate().RemainingArgs().RemainingRets().Attrs());                  \
  XLA_FFI_DEFINE_HANDLER(                                                                                       \
      name##_ffi, name##_handler,                                                                               \
      ffi::Ffi::Bind().Ctx<ffi::PlatformStream<CUstream_st*>>().RemainingArgs().RemainingRets().Attrs(),        \
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

// (kernel, [(bytes of shared memory, what a device has to grant a block for the shape to be taken)], is_optional) for
// each kernel that needs more than every device grants unasked.
nb::list kernel_shapes() {
  struct None final : Attributes {
    int64_t operator[](std::string_view) const override { return 0; }
  } none;
  const Call call{"kernel_shapes", {}, {}, none};
  cuda::KernelShapeList list;
  cuda::list_merge_shapes(call, list);
  cuda::list_scan_shapes(call, list);
  cuda::list_segmented_sort_shapes(call, list);
  cuda::list_sets_shapes(call, list);
  cuda::list_sorted_search_shapes(call, list);
  nb::list table;
  for (const cuda::KernelShapes& kernel : list) {
    nb::list shapes;
    for (const auto& shape : kernel.shapes) shapes.append(nb::make_tuple(shape.bytes, shape.least_limit));
    table.append(nb::make_tuple(kernel.kernel, shapes, kernel.is_optional));
  }
  return table;
}

nb::dict handlers() {
  nb::dict table;
  table["check"] = nb::capsule(reinterpret_cast<void*>(check_ffi));
#define MGPU_CAPSULE(name) table[#name] = nb::capsule(reinterpret_cast<void*>(name##_ffi));
  MGPU_OPERATIONS(MGPU_CAPSULE)
#undef MGPU_CAPSULE
  return table;
}

// The same of operations by a function: of each stage.
nb::dict function_handlers() {
  nb::dict table;
#define MGPU_CAPSULES(name)                                                               \
  {                                                                                       \
    nb::dict stages;                                                                      \
    stages["instantiate"] = nb::capsule(reinterpret_cast<void*>(name##_instantiate_ffi)); \
    stages["execute"] = nb::capsule(reinterpret_cast<void*>(name##_ffi));                 \
    table[#name] = stages;                                                                \
  }
  MGPU_FUNCTION_OPERATIONS(MGPU_CAPSULES)
#undef MGPU_CAPSULES
  return table;
}

}  // namespace

NB_MODULE(_cuda, module) {
  module.def("handlers", &handlers, "FFI handlers by the name of the operation.");
  module.def("function_handlers", &function_handlers, "Stages of FFI handlers by the name of the operation.");
  module.def("set_compiler_folders", &cuda::set_compiler_folders, nb::arg("folders"), "Where NVRTC is looked for.");
  module.def("compiler_problem", &cuda::compiler_problem, "Why NVRTC cannot be used, or nothing where it can.");
  module.def("compiled_functions", &cuda::compiled_functions,
             "How many functions this process has compiled, and how many it has read from the disk.");
  module.def("kernel_shapes", &kernel_shapes, "Kernels with the shared memory that their shapes take.");
  module.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  module.attr("architectures") = MGPU_CUDA_ARCHITECTURES;
  module.attr("compiler") = MGPU_CUDA_COMPILER;
}

}  // namespace mgpu
