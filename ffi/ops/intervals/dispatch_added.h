#pragma once

#include "algorithm/floats.h"
#include "ops/intervals/operands.h"
#include "runtime/call.h"

namespace mgpu {

template <typename Visit>
void dispatch_added(const Call& call, Visit visit) {
  switch (const DType dtype = call.results[0].dtype) {
    case DType::f16: return visit(Half{});
    case DType::bf16: return visit(BFloat16{});
    case DType::f32: return visit(float{});
    case DType::f64: return visit(double{});
    default: call.fail("x: expected floats to add, got " + std::string(dtype_name(dtype)));
  }
}

}  // namespace mgpu
