// The merge pipeline of two sorted operands on CUDA, for merges, searches and matches.
#pragma once

#include "algorithm/neighbour_runs.h"
#include "algorithm/sorted_pair.h"
#include "cuda/device.h"

namespace mgpu {

class Workspace;

// Tiles pass through two stages, which are buffers
// in shared memory. Large stages are for devices that could
// grant one block the memory of kPipelineBlocks blocks. Two
// small stages and the static memory fit the 64 KB of sm_75.
constexpr int kPipelineWorkers = 480;  // threads that merge; one more warp copies
constexpr int kPipelineBlocks = 2;
constexpr int kMaxStageBytes = 55 << 10;    // so that two blocks fit a multiprocessor of sm_90
constexpr int kPipelineStaticBytes = 1024;  // the most static shared memory, in addition to the two stages

// The room for `runs` runs of `count` items in all. Each run is aligned as in device memory.
constexpr int run_bytes(int width, int count, int runs) {
  return (count * width + kLineBytes - 1) / kLineBytes * kLineBytes + 2 * runs * kLineBytes;
}
// Threads read a few items past a tile's end.
constexpr int pipeline_run_bytes(int width, int items) {
  return run_bytes(width, (kPipelineWorkers + 3) * items + 2, 2);
}

struct PipelineShape {
  int items;  // an odd number
  int stage_bytes;
  constexpr int tile() const { return kPipelineWorkers * items; }
  constexpr int64_t block_bytes() const { return 2 * stage_bytes + kPipelineStaticBytes; }
  // A device must grant a block this much for large stages to be chosen.
  constexpr int64_t wanted_bytes() const { return kPipelineBlocks * block_bytes(); }
};
template <typename StageBytes>
constexpr PipelineShape pipeline_shape(bool large_stages, int max_bytes, StageBytes stage_bytes) {
  const int limit = large_stages ? max_bytes : 31 << 10;
  int items = 23;
  while (items > 1 && stage_bytes(items) > limit) items -= 2;
  return {items, stage_bytes(items)};
}

// No shape has a smaller tile (launch_merge_pipeline asserts it), so the workspace has room for any device's tiles.
constexpr int64_t kMinMergeTile = 1344;

// For each tile, the number of live items of A before it in its row; and the number of tiles that blocks have taken. A
// tile has at least kMinMergeTile slots, except the last one of a row or of a pair of runs.
struct MergeSplits {
  int64_t* splits;
  unsigned long long* taken;

  // A row may need `short_tiles` additional tiles, because a tile also ends where a pair of runs ends.
  static MergeSplits layout(const SortedPair& pair, Workspace& workspace, int64_t short_tiles = 0);
  static int64_t max_tiles(const SortedPair& pair, int64_t short_tiles);
};

// A's sorted runs may also be merged in pairs.
struct RunSplits : MergeSplits {
  RunTile* run_tiles;  // null if A has no runs
};

}  // namespace mgpu
