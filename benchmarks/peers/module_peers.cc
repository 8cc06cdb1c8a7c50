// The benchmarks' extension: CUB's and Thrust's algorithms as FFI handlers. Never part of a wheel.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "handler.h"
#include "peers.h"

namespace nb = nanobind;

namespace mgpu {
namespace {

struct XlaScratch final : peers::Scratch {
  explicit XlaScratch(ffi::ScratchAllocator& allocator) : allocator(allocator) {}
  void* allocate(size_t bytes) override {
    // 16 is the most that XLA lets a caller ask for; its pool gives 256.
    const auto memory = allocator.Allocate(bytes == 0 ? 1 : bytes, 16);
    if (!memory) throw CallError("no temporary memory of " + std::to_string(bytes) + " bytes");
    return *memory;
  }
  ffi::ScratchAllocator& allocator;
};

// Not command-buffer compatible: most of these algorithms allocate, and some wait for the device.
#define MGPU_HANDLER(name)                                                                                     \
  ffi::Error name##_handler(CUstream_st* stream, ffi::ScratchAllocator allocator, ffi::RemainingArgs operands, \
                            ffi::RemainingRets results, ffi::Dictionary attributes) {                          \
    XlaScratch scratch(allocator);                                                                             \
    return run_call(#name, operands, results, attributes,                                                      \
                    [&](const Call& call) { peers::name(call, stream, scratch); });                            \
  }                                                                                                            \
  XLA_FFI_DEFINE_HANDLER(name##_ffi, name##_handler,                                                           \
                         ffi::Ffi::Bind()                                                                      \
                             .Ctx<ffi::PlatformStream<CUstream_st*>>()                                         \
                             .Ctx<ffi::ScratchAllocator>()                                                     \
                             .RemainingArgs()                                                                  \
                             .RemainingRets()                                                                  \
                             .Attrs());
MGPU_PEERS(MGPU_HANDLER)
#undef MGPU_HANDLER

nb::dict handlers() {
  nb::dict table;
#define MGPU_CAPSULE(name) table[#name] = nb::capsule(reinterpret_cast<void*>(name##_ffi));
  MGPU_PEERS(MGPU_CAPSULE)
#undef MGPU_CAPSULE
  return table;
}

}  // namespace

NB_MODULE(_peers, module) {
  module.def("handlers", &handlers, "FFI handlers by the name of the algorithm.");
  module.attr("cub_version") = MGPU_CUB_VERSION;
  module.attr("compiler") = MGPU_CUDA_COMPILER;
}

}  // namespace mgpu
