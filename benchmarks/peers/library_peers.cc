// CUB's and Thrust's algorithms as FFI handlers, for the benchmarks. Never part of a wheel.
#include "peers.h"
#include "runtime/handler.h"
#include "runtime/library.h"

namespace mgpu {
namespace {

struct XlaScratch final : peers::Scratch {
  explicit XlaScratch(ffi::ScratchAllocator& allocator) : allocator(allocator) {}
  void* allocate(size_t bytes) override {
    // An alignment of 16 bytes is the most that XLA lets a caller request; its pool gives 256.
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

const mgpu::LibraryTable* jax_mgpu_library() {
  using namespace mgpu;
  static constexpr FactEntry facts[] = {{"cub_version", MGPU_CUB_VERSION}, {"compiler", MGPU_CUDA_COMPILER}};
#define MGPU_ENTRY(name) {#name, "execute", reinterpret_cast<void*>(name##_ffi)},
  static const HandlerEntry handlers[] = {MGPU_PEERS(MGPU_ENTRY)};
#undef MGPU_ENTRY
  static const LibraryTable table = {.bytes = sizeof(LibraryTable),
                                     .version = MGPU_VERSION,
                                     .ffi_api_major = XLA_FFI_API_MAJOR,
                                     .ffi_api_minor = XLA_FFI_API_MINOR,
                                     .facts = {facts, std::size(facts)},
                                     .handlers = {handlers, std::size(handlers)}};
  return &table;
}
