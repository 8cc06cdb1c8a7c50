#include "ops/common/operators.h"

#include "ops/common/dispatch_operator.h"
#include "ops/common/read.h"

namespace mgpu {

OperatorOperands::OperatorOperands(const Call& call, const Array& elements, const Array* heads, const Array* count,
                                   int own_rank)
    : kind(static_cast<OperatorKind>(call.attributes["op"])),
      dtype(elements.dtype),
      sum_dtype(elements.dtype),
      x(elements.data) {
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

}  // namespace mgpu
