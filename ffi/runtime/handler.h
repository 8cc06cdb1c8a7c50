// Turns XLA's frame of a custom call into a mgpu::Call. This is the only header that includes XLA; each library
// includes it once.
#pragma once

#include <array>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "jit/function_data.h"
#include "runtime/call.h"
#include "runtime/signature.h"
#include "xla/ffi/api/ffi.h"

namespace mgpu {

namespace ffi = xla::ffi;

inline DType dtype_of(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::DataType::U8: return DType::u8;
    case ffi::DataType::U16: return DType::u16;
    case ffi::DataType::U32: return DType::u32;
    case ffi::DataType::U64: return DType::u64;
    case ffi::DataType::S8: return DType::s8;
    case ffi::DataType::S16: return DType::s16;
    case ffi::DataType::S32: return DType::s32;
    case ffi::DataType::S64: return DType::s64;
    case ffi::DataType::F16: return DType::f16;
    case ffi::DataType::BF16: return DType::bf16;
    case ffi::DataType::F32: return DType::f32;
    case ffi::DataType::F64: return DType::f64;
    case ffi::DataType::PRED: return DType::boolean;
    case ffi::DataType::C64: return DType::c64;
    case ffi::DataType::C128: return DType::c128;
    default: throw CallError("element type without a kernel");
  }
}

inline Array array_of(const ffi::AnyBuffer& buffer) {
  const auto dimensions = buffer.dimensions();
  return {buffer.untyped_data(), dtype_of(buffer.element_type()), {dimensions.begin(), dimensions.end()}};
}

struct FrameAttributes final : Attributes {
  explicit FrameAttributes(const ffi::Dictionary& dictionary) : dictionary(dictionary) {}
  int64_t operator[](std::string_view name) const override {
    auto value = dictionary.get<int64_t>(name);
    if (!value.has_value()) throw CallError("no integer attribute " + std::string(name));
    return *value;
  }
  const ffi::Dictionary& dictionary;
};

inline std::string_view attribute_text(const ffi::Dictionary& dictionary, std::string_view name) {
  auto value = dictionary.get<std::string_view>(name);
  if (!value.has_value()) throw CallError("no text attribute " + std::string(name));
  return *value;
}

inline ffi::Error handled_error(const char* operation) {
  const auto exhausted = [&](const char* what) {
    std::string message = "out of memory";  // short enough to need no allocation
    try {
      message = std::string(operation) + ": " + what;
    } catch (const std::bad_alloc&) {
    }
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, std::move(message));
  };
  try {
    throw;
  } catch (const CallError& error) {
    return ffi::Error::InvalidArgument(error.what());
  } catch (const DeviceMemoryError& error) {
    return exhausted(error.what());
  } catch (const std::bad_alloc&) {
    return exhausted("out of memory");
  } catch (const std::length_error&) {  // longer than any vector
    return exhausted("out of memory");
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string(operation) + ": " + error.what());
  }
}

// Runs when XLA loads a program.
template <typename Prepare>
ffi::Error prepare_call(const char* operation, const ffi::Dictionary& attributes, Prepare prepare) {
  try {
    prepare(FrameAttributes(attributes), function_of(attribute_text(attributes, "function")));
    return ffi::Error::Success();
  } catch (const CallError& error) {
    return ffi::Error::InvalidArgument(std::string(operation) + ": " + error.what());
  } catch (...) {
    return handled_error(operation);
  }
}

// What the function throws becomes XLA's error.
template <typename Run>
ffi::Error run_call(const char* operation, ffi::RemainingArgs operands, ffi::RemainingRets results,
                    const ffi::Dictionary& dictionary, Run run) {
  try {
    const FrameAttributes attributes(dictionary);
    Call call{operation, {}, {}, attributes};
    call.operands.reserve(operands.size());
    call.results.reserve(results.size());
    for (size_t i = 0; i < operands.size(); ++i) call.operands.push_back(array_of(*operands.get<ffi::AnyBuffer>(i)));
    for (size_t i = 0; i < results.size(); ++i) call.results.push_back(array_of(**results.get<ffi::AnyBuffer>(i)));
    expect_sizes(call);
    run(call);
    return ffi::Error::Success();
  } catch (...) {
    return handled_error(operation);
  }
}

}  // namespace mgpu
