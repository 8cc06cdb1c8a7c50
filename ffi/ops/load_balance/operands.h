// The call of load_balance_search as its kernels see it: the same on both platforms.
#pragma once

#include "algorithm/load_balance.h"

namespace mgpu {

struct Call;
class Workspace;

// Operands: offsets [.., objects], total [.., 1] or absent. Attribute: return_rank. Results: objects [.., size] and,
// with return_rank, ranks [.., size], both int32 or both int64.
struct LoadBalanceOperands {
  WorkList work;
  bool wide;  // int64 results
  void* objects;
  void* ranks = nullptr;

  explicit LoadBalanceOperands(const Call& call);
  WorkTiles layout(Workspace& workspace) const;
};

}  // namespace mgpu
