// CUDA's handlers, for XLA's CPU client. Kernels run on copies of a call's arrays, with guards around each.
#include <sanitizer/asan_interface.h>
#include <xmmintrin.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "emulator.h"
#include "runtime/description.h"
#include "runtime/handler.h"
#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

namespace {

constexpr int64_t kGuardBytes = 256;  // on a GPU, XLA aligns arrays to this
constexpr char kGarbage = static_cast<char>(emulator::kGarbage);

// Results that alias no operand begin as garbage. With ASan, accesses to guards are reported.
struct Copy {
  Copy(const Array& array, std::string name)
      : original(array.data),
        bytes(array.bytes()),
        all_bytes(ceil_div(bytes, kGuardBytes) * kGuardBytes + 2 * kGuardBytes),
        memory(static_cast<char*>(std::aligned_alloc(kGuardBytes, all_bytes)), std::free),
        name(std::move(name)) {
    if (!memory) throw std::bad_alloc();
    std::memset(memory.get(), kGarbage, all_bytes);
    ASAN_POISON_MEMORY_REGION(memory.get(), kGuardBytes);
    ASAN_POISON_MEMORY_REGION(data() + bytes, all_bytes - kGuardBytes - bytes);
  }
  char* data() const { return memory.get() + kGuardBytes; }
  bool has_intact_guards() const {
    ASAN_UNPOISON_MEMORY_REGION(memory.get(), all_bytes);
    for (int64_t i = 0; i < all_bytes; i = i + 1 == kGuardBytes ? i + 1 + bytes : i + 1) {
      if (memory.get()[i] != kGarbage) return false;
    }
    return true;
  }

  void* original;
  int64_t bytes, all_bytes;
  std::unique_ptr<char, decltype(&std::free)> memory;
  std::string name;
  bool is_result = false;
};

// An operand that XLA aliases with a result has the same copy.
class Copies {
 public:
  explicit Copies(Call& call) {
    for (Array& array : call.operands) take(array, "operand " + std::to_string(&array - call.operands.data()), false);
    for (Array& array : call.results) take(array, "result " + std::to_string(&array - call.results.data()), true);
    take(call.workspace, "the scratch memory", true);
  }
  void finish(const Call& call) const {
    for (const auto& [key, copy] : copies_) {
      if (!copy.has_intact_guards()) call.fail("a kernel wrote outside of " + copy.name);
      if (copy.is_result) std::memcpy(copy.original, copy.data(), copy.bytes);
    }
    for (const auto& [key, copy] : copies_) {
      if (std::memcmp(copy.original, copy.data(), copy.bytes) != 0) call.fail("a kernel wrote to " + copy.name);
    }
  }

 private:
  void take(Array& array, const std::string& name, bool is_result) {
    if (!array.data) return;
    const auto [found, is_new] = copies_.try_emplace({array.data, array.bytes()}, array, name);
    Copy& copy = found->second;
    copy.is_result |= is_result;
    if (is_new && !is_result) std::memcpy(copy.data(), array.data, copy.bytes);
    array.data = copy.data();
  }

  std::map<std::pair<void*, int64_t>, Copy> copies_;
};

// While it exists, its thread computes with denormal numbers, as GPUs do. XLA's threads treat them as zeros.
class DenormalNumbers {
 public:
  DenormalNumbers() { _mm_setcsr(0x1f80); }
  ~DenormalNumbers() { _mm_setcsr(before_); }

 private:
  unsigned before_ = _mm_getcsr();
};

template <typename Kernels>
void emulate(Call& call, Kernels kernels) {
  static std::mutex one_at_a_time;  // kernels have shared memory in static variables
  const std::lock_guard lock(one_at_a_time);
  const DenormalNumbers denormal_numbers;
  take_workspace(call);
  const Copies copies(call);
  kernels(call, nullptr);
  copies.finish(call);
}

#define MGPU_HANDLER(name)                                                                                         \
  ffi::Error name##_handler(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary attributes) { \
    return run_call(#name, operands, results, attributes, [](Call& call) { emulate(call, cuda::name); });          \
  }                                                                                                                \
  XLA_FFI_DEFINE_HANDLER(name##_ffi, name##_handler, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
MGPU_OPERATIONS(MGPU_HANDLER)
MGPU_CUDA_OPERATIONS(MGPU_HANDLER)
#undef MGPU_HANDLER

struct EmulatedDescription : Description {
  EmulatedDescription() : Description(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR) {
#define MGPU_ENTRY(name) {#name, "execute", reinterpret_cast<void*>(name##_ffi)},
    static const HandlerEntry handlers[] = {MGPU_OPERATIONS(MGPU_ENTRY) MGPU_CUDA_OPERATIONS(MGPU_ENTRY)};
#undef MGPU_ENTRY
    table.handlers = {handlers, std::size(handlers)};
  }
};

}  // namespace
}  // namespace mgpu

const mgpu::LibraryTable* jax_mgpu_library() {
  static const mgpu::EmulatedDescription description;
  return &description.table;
}
