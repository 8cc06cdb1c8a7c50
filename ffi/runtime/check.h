// The outcome of a precondition's check: for each problem of the batch, the first position at which an argument breaks
// it, and the value there.
#pragma once

#include <charconv>
#include <string>
#include <string_view>

#include "runtime/call.h"

namespace mgpu {

// The shortest text of an integer, or of a float of 32 or 64 bits, that
// reads back as the same number. For other types, the name of the type.
inline std::string number_text(const void* data, DType dtype, int64_t index) {
  char text[32];
  const auto write = [&](auto zero) {
    return std::to_chars(text, text + sizeof(text), static_cast<const decltype(zero)*>(data)[index]).ptr;
  };
  switch (dtype) {
    case DType::u8: return {text, write(uint8_t{})};
    case DType::u16: return {text, write(uint16_t{})};
    case DType::u32: return {text, write(uint32_t{})};
    case DType::u64: return {text, write(uint64_t{})};
    case DType::s8: return {text, write(int8_t{})};
    case DType::s16: return {text, write(int16_t{})};
    case DType::s32: return {text, write(int32_t{})};
    case DType::s64: return {text, write(int64_t{})};
    case DType::f32: return {text, write(float{})};
    case DType::f64: return {text, write(double{})};
    default: return std::string(dtype_name(dtype));
  }
}

// The call has three operands: the argument [.., *]; for each problem a position, int32 [..], which is -1 if the
// precondition holds; and the items at these positions [..]. `positions` and `values` are copies of the last two in
// host memory. The error names the first problem in which the precondition is broken, and the position unless the
// argument has only one item.
inline void throw_if_broken(const Call& call, const int32_t* positions, const void* values, std::string_view expected) {
  const int64_t problems = call.operands[1].size();
  for (int64_t problem = 0; problem < problems; ++problem) {
    if (positions[problem] < 0) continue;
    std::string message(expected);
    const bool is_scalar = call.operands[0].size() == problems;
    if (!is_scalar) message += ", first broken at position " + std::to_string(positions[problem]);
    if (problems > 1) message += (is_scalar ? ", first broken in problem " : " of problem ") + std::to_string(problem);
    throw CallError(message + ", got " + number_text(values, call.operands[2].dtype, problem));
  }
}

inline void expect_check_operands(const Call& call) {
  call.expect(call.operands.size() == 3 && call.results.size() == 1 && call.operands[1].dtype == DType::s32 &&
                  call.operands[2].size() == call.operands[1].size(),
              "expected an argument, positions and as many values");
  call.expect(call.results[0].bytes() == call.operands[0].bytes(), "expected a result like the argument");
}

}  // namespace mgpu
