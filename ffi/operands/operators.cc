#include "operands/operators.h"

#include "operands/dispatch_operator.h"
#include "operands/read.h"

namespace mgpu {

OperatorOperands::OperatorOperands(const Call& call, const Array& elements, const Array* heads, const Array* count,
                                   int own_rank)
    : kind(static_cast<OperatorKind>(call.attributes["op"])), dtype(elements.dtype), x(elements.data) {
  call.expect(elements.rank() >= own_rank, "x: expected more axes");
  segments.length = elements.dimensions[elements.rank() - own_rank];
  segments.rows = Call::batch(elements, own_rank);
  if (heads) {
    segments.heads_count = Call::length(*heads);
    segments.heads = call.index_vector(*heads, "heads");
    segments.heads_stride = call.row_stride(*heads, segments.heads_count, segments.rows, "heads");
  }
  if (count) segments.counts = call.live_counts(*count, segments.rows);
  positions = segments.total();
}

int64_t OperatorOperands::state_bytes(const Call& call) const {
  int64_t bytes = 0;
  dispatch_reduction<true>(call, [&](auto op) { bytes = sizeof(typename decltype(op)::State); });
  return bytes;
}

void OperatorOperands::expect_result(const Call& call, const Array& result, int64_t size) const {
  call.expect(result.size() == size, "result: wrong number of items");
  const bool holds = gives_index(kind) ? result.dtype == DType::s32 || result.dtype == DType::s64
                                       : result.dtype == wide.value_or(dtype);
  call.expect(holds, "result: wrong type");
  call.expect(!wide || kind == OperatorKind::kAdd || kind == OperatorKind::kMul, "wide: expected a sum or product");
}

}  // namespace mgpu
