// How CUDA walks along the merge of two sorted operands: the common part of merges, searches and matches.
#pragma once

#include "algorithm/neighbour_runs.h"
#include "algorithm/sorted_pair.h"
#include "cuda/device.h"

namespace mgpu {

class Workspace;

// Merges, searches and matches stream tiles through two stages of shared memory. Long tiles need the fewest hand-overs,
// and two blocks of a multiprocessor hide each other's. Each shape exists in two sizes: large, for devices that could
// grant one block what kStreamBlocks of it take together, and small, with 31 KB per stage: sm_86, sm_89 and sm_120
// grant 99 KB, sm_75 has 64 KB in all.
constexpr int kStreamWorkers = 480;  // threads that merge; one more warp copies
constexpr int kStreamBlocks = 2;
constexpr int kMostStageBytes = 55 << 10;  // all that two blocks have room for
constexpr int kStreamStaticBytes = 1024;   // at most, beside the two stages

// The bytes of shared memory of `count` items in several runs, each aligned as in device memory.
constexpr int run_bytes(int width, int count, int runs) {
  return (count * width + kLineBytes - 1) / kLineBytes * kLineBytes + 2 * runs * kLineBytes;
}
// Bytes for a tile's keys (or data laid out alike), plus look-ahead: a thread reads past the end.
constexpr int stream_run_bytes(int width, int items) { return run_bytes(width, (kStreamWorkers + 3) * items + 2, 2); }

struct StreamShape {
  int items;  // a thread's: an odd number
  int stage_bytes;
  constexpr int tile() const { return kStreamWorkers * items; }
  constexpr int64_t block_bytes() const { return 2 * stage_bytes + kStreamStaticBytes; }
  // The shared memory that a device must grant a block for this shape to be worth it.
  constexpr int64_t wanted_bytes() const { return kStreamBlocks * block_bytes(); }
};
template <typename StageBytes>
constexpr StreamShape stream_shape(bool large, int most_bytes, StageBytes stage_bytes) {
  const int limit = large ? most_bytes : 31 << 10;
  int items = 23;
  while (items > 1 && stage_bytes(items) > limit) items -= 2;
  return {items, stage_bytes(items)};
}

// The smallest tile of all, which determines the workspace.
constexpr int64_t kLeastMergeTile = 1344;

// The scratch memory of a CUDA kernel that walks along a merge: where A is split at the start of each tile, of at least
// kLeastMergeTile slots unless its row has fewer, and the number of tiles taken.
struct MergeSplits {
  int64_t* splits;
  unsigned long long* taken;

  // With this many tiles of a row beyond those that its slots fill.
  static MergeSplits layout(const SortedPair& pair, Workspace& workspace, int64_t short_tiles = 0);
  static int64_t most_tiles(const SortedPair& pair, int64_t short_tiles);
};

// The same if A may be consecutive runs.
struct RunSplits : MergeSplits {
  RunTile* run_tiles;  // or null: A has none
};

}  // namespace mgpu
