// The benchmarks' library: CUB's and Thrust's algorithms as FFI handlers. Never part of a wheel.
#include "peers.h"
#include "runtime/handler.h"
#include "runtime/library.h"

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

}  // namespace
}  // namespace mgpu

const char* jax_mgpu_describe(const char* what) {
  using namespace mgpu;
  if (std::string_view(what) != "library") return nullptr;
  return keep(json_object({{"ffi_api_version", json_pair(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR)},
                           {"cub_version", json(int64_t{MGPU_CUB_VERSION})},
                           {"compiler", json(MGPU_CUDA_COMPILER)}}));
}

const mgpu::HandlerEntry* jax_mgpu_handlers() {
  using namespace mgpu;
#define MGPU_ENTRY(name) {#name, "execute", reinterpret_cast<void*>(name##_ffi)},
  static const HandlerEntry table[] = {MGPU_PEERS(MGPU_ENTRY){nullptr, nullptr, nullptr}};
#undef MGPU_ENTRY
  return table;
}
