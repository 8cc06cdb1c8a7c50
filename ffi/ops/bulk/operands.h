// bulk_remove and bulk_insert are a load-balancing search whose objects are the removed or inserted items. Each of them
// shifts the items after it by one (WorkList::drift).
#pragma once

#include "ops/load_balance/operands.h"
#include "ops/move_rows/rows.h"

namespace mgpu {

// Operands of bulk_remove: x [.., n, elements]; indices [.., m]; count [.., 1], the number of live items of x, or
// absent; fill_value [.., 1]. bulk_insert has values [.., m, elements] after the indices. Result: [.., size, elements].
struct BulkOperands {
  WorkList work;
  Rows x;
  Rows values{};
  Fill fill;
  Rows out;

  BulkOperands(const Call& call, bool inserts);
  WorkTiles layout(Workspace& workspace) const;
};

}  // namespace mgpu
