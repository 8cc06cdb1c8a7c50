// Scratch memory of a CUDA call: one buffer. The operation's code that divides it also computes its size.
#pragma once

#include <utility>

#include "runtime/call.h"

namespace mgpu {

// Divides a buffer into aligned pieces. For a null buffer it only counts, which gives the size.
class Workspace {
 public:
  Workspace(void* data, int64_t capacity) : data_(static_cast<char*>(data)), capacity_(capacity) {}
  Workspace() : Workspace(nullptr, -1) {}

  template <typename T>
  T* take(int64_t count) {
    const int64_t begin = used_;
    int64_t bytes, end;
    if (__builtin_mul_overflow(count, static_cast<int64_t>(sizeof(T)), &bytes) ||
        __builtin_add_overflow(begin, bytes, &end) || bytes < 0 || end > INT64_MAX - kAlignment) {
      throw CallError("expected less scratch memory than 2^63 bytes");
    }
    used_ = (end + kAlignment - 1) / kAlignment * kAlignment;
    if (capacity_ >= 0 && used_ > capacity_) throw CallError("workspace smaller than its layout");
    return data_ ? reinterpret_cast<T*>(data_ + begin) : nullptr;
  }

  int64_t used() const { return used_; }

 private:
  static constexpr int64_t kAlignment = 256;
  char* data_;
  int64_t capacity_;
  int64_t used_ = 0;
};

// The last result of a CUDA call is its scratch memory.
inline void take_workspace(Call& call) {
  call.expect(!call.results.empty() && call.results.back().dtype == DType::u8,
              "expected scratch memory, uint8, as the last result");
  call.workspace = std::move(call.results.back());
  call.results.pop_back();
}

inline Workspace workspace_of(const Call& call) { return {call.workspace.data, call.workspace.bytes()}; }

template <typename Operands, typename... Arguments>
int64_t layout_bytes(const Operands& operands, Arguments... arguments) {
  Workspace workspace;
  operands.layout(workspace, arguments...);
  return workspace.used();
}

}  // namespace mgpu
