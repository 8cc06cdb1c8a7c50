// Finds the object that owns each output.
#pragma once

#include "algorithm/load_balance.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: offsets [.., objects], the first output of each object; total [.., 1], the end of the last object's
// outputs, or absent. Attribute: return_rank. Results: objects [.., size] and, with return_rank, ranks [.., size], the
// number of each output among those of its object; both int32 or both int64, and -1 for outputs without an object.
struct LoadBalanceOperands {
  WorkList work;
  bool wide;  // int64 results
  void* objects;
  void* ranks = nullptr;

  explicit LoadBalanceOperands(const Call& call);
  WorkTiles layout(Workspace& workspace) const;
};

}  // namespace mgpu
