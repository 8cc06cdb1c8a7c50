// The outcome of a precondition's check: for each problem of the batch, the first position at which an argument breaks
// it.
#pragma once

#include <string>
#include <string_view>

#include "call.h"

namespace mgpu {

// Operands: the argument [.., *], positions [..] int32 in host memory, -1 where all is well. Throws, naming the first
// position of the first problem that breaks the precondition.
inline void throw_if_broken(const int32_t* positions, int64_t problems, std::string_view expected) {
  for (int64_t problem = 0; problem < problems; ++problem) {
    if (positions[problem] < 0) continue;
    std::string message(expected);
    message += ", first broken at position " + std::to_string(positions[problem]);
    if (problems > 1) message += " of problem " + std::to_string(problem);
    throw CallError(message);
  }
}

inline const Array& check_positions(const Call& call) {
  call.expect(call.operands.size() == 2 && call.operands[1].dtype == DType::s32, "expected an argument and positions");
  call.expect(call.results.at(0).bytes() == call.operands[0].bytes(), "expected a result as the argument");
  return call.operands[1];
}

}  // namespace mgpu
