// What the kernels of two sorted operands share.
#pragma once

#include "algorithm/neighbour_runs.h"
#include "algorithm/sorted_pair.h"
#include "cuda/policy.h"

namespace mgpu {

class Workspace;

// What a CUDA kernel that walks along a merge keeps: where A is split at the begin of each tile, of at least
// kLeastMergeTile slots unless its row has fewer, and the number of tiles taken.
struct MergeSplits {
  int64_t* splits;
  unsigned long long* taken;

  // With so many tiles of a row beyond those that its slots fill.
  static MergeSplits layout(const SortedPair& pair, Workspace& workspace, int64_t short_tiles = 0);
  static int64_t most_tiles(const SortedPair& pair, int64_t short_tiles);
};

// The same where A may be neighbouring runs.
struct RunSplits : MergeSplits {
  RunTile* run_tiles;  // or null: A is none
};

}  // namespace mgpu
