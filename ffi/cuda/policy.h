// The shapes of the CUDA kernels' blocks and tiles, and where one kernel takes over from another: by the width of keys,
// elements or states in bytes. Workspaces are sized by them, so they ask no device. What follows from them and from an
// algorithm is written beside it.
#pragma once

#include "algorithm/common.h"
#include "cuda/reference_device.h"
#include "cuda/tile_shape.h"

namespace mgpu {

// ---- Set operations: a tile of both inputs is one item less than its block has room for, as a split may take one
// more.
constexpr TileShape set_tile_shape(int key_width) { return {256, key_width == 8 ? 11 : 23}; }
constexpr int set_tile(int key_width) { return set_tile_shape(key_width).tile() - 1; }

// ---- Joins
constexpr TileShape join_tile_shape(int key_width) { return {256, key_width == 8 ? 11 : 23}; }
constexpr int64_t kJoinHeavy = 1 << 16;  // rows of the output from which a tile is heavy, and shared by many blocks
constexpr int64_t kJoinUnit = 1 << 15;   // a block's share of it

// ---- Merges, searches and matches, which stream tiles through two stages of shared memory. Long tiles cost fewest
// hand-overs, two blocks of a multiprocessor hide each other's. Each shape is there large, for devices that could grant
// one block what kStreamBlocks of it take together, and small, of 31 KB a stage: sm_86, sm_89 and sm_120 grant 99 KB,
// sm_75 has 64 KB in all.
constexpr int kStreamWorkers = 480;  // threads that merge; one warp more copies
constexpr int kStreamBlocks = 2;
constexpr int kMostStageBytes = 55 << 10;  // all that two blocks have room for
constexpr int kStreamStaticBytes = 1024;   // at most, beside the two stages

// In shared memory an item lies where it lies within its cache line: runs that begin elsewhere cost the copy engine two
// requests for each of one.
constexpr int kLineBytes = 128;

// The bytes of shared memory that `count` items in a number of runs take, each of which lies as in device memory.
constexpr int run_bytes(int width, int count, int runs) {
  return (count * width + kLineBytes - 1) / kLineBytes * kLineBytes + 2 * runs * kLineBytes;
}
// Of a tile's keys or of what lies as they do, with those after it; a thread reads past the end.
constexpr int stream_run_bytes(int width, int items) { return run_bytes(width, (kStreamWorkers + 3) * items + 2, 2); }

struct StreamShape {
  int items;  // a thread's: an odd number
  int stage_bytes;
  constexpr int tile() const { return kStreamWorkers * items; }
  constexpr int64_t block_bytes() const { return 2 * stage_bytes + kStreamStaticBytes; }
  // What a device has to grant a block for this shape to be worth it.
  constexpr int64_t wanted_bytes() const { return kStreamBlocks * block_bytes(); }
};
template <typename StageBytes>
constexpr StreamShape stream_shape(bool large, int most_bytes, StageBytes stage_bytes) {
  const int limit = large ? most_bytes : 31 << 10;
  int items = 23;
  while (items > 1 && stage_bytes(items) > limit) items -= 2;
  return {items, stage_bytes(items)};
}

// Of a merge: the keys, then the payloads as the keys lie. Keys alone are merged 1% faster in shorter tiles, rows of
// 1000 by 15%; with a payload it is the other way round.
constexpr StreamShape merge_shape(int key_width, int payload_width, bool large) {
  return stream_shape(large, payload_width > 0 ? kMostStageBytes : 36 << 10, [=](int items) {
    return stream_run_bytes(key_width, items) + (payload_width > 0 ? stream_run_bytes(payload_width, items) : 0);
  });
}

// Of a search or a match: the keys, whose place what leaves a tile takes, an int32 for each item; where items are
// matched, a byte for each follows.
constexpr int search_index_bytes(int key_width, int items) {
  return maximum(stream_run_bytes(key_width, items), run_bytes(4, kStreamWorkers * items, 2));
}
constexpr StreamShape search_shape(int key_width, bool matches, bool large) {
  return stream_shape(large, kMostStageBytes, [=](int items) {
    return search_index_bytes(key_width, items) + (matches ? run_bytes(1, kStreamWorkers * items, 2) : 0);
  });
}

// The least tile of all, by which the workspace is sized.
constexpr int64_t kLeastMergeTile = 1344;

// ---- Load balancing: a block finds the objects of this many outputs a thread: of words, of rows of several words, and
// of rows of kWideRowBytes and more in words of 16 bytes. Those have many words for each row that is found, and small
// tiles leave blocks enough for all multiprocessors: 32,768 rows of 14,336 bytes take 0.161 ms for 0.193, while rows of
// 48 bytes would take up to 1.3 times as long.
constexpr int kWorkThreads = 256;
constexpr int kWordItems = 16;
constexpr int kRowItems = 4;
constexpr int kWideRowItems = 1;
constexpr int64_t kWideRowBytes = 256;
constexpr int work_items(int64_t row_bytes, int word_bytes) {
  if (row_bytes <= word_bytes) return kWordItems;
  return word_bytes == 16 && row_bytes >= kWideRowBytes ? kWideRowItems : kRowItems;
}
// Blocks on a multiprocessor where one step makes words of so many bytes: what their registers allow. With six blocks
// in place of eight, expansions of 4-byte words of mean 5 took 9% longer.
constexpr int work_blocks(int word_bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return 4;
#else
  return word_bytes == 1 ? 4 : word_bytes > 4 ? 6 : 8;
#endif
}

// ---- Reductions: a block of threads reduces this much of a row. 64 KB keep its loads in flight, and leave 2048 blocks
// of 2^27 bytes; of more it takes twice as much, since what a block does before its first load and after its last one
// counts.
constexpr int64_t kReduceChunkBytes = 1 << 16;
constexpr int64_t kReduceMostChunks = 2048;
// So many rows, up to this long, are a block each: they fill the reference device once, 3 to 8 blocks on each
// multiprocessor, and need no second kernel. 2^25 floats in 500 rows take 0.034 ms in place of 0.036. With fewer or
// longer rows, or a second turn of blocks, most multiprocessors would wait for the last row.
constexpr int64_t kReduceLeastBlockRows = 3 * kReferenceMultiprocessors;
constexpr int64_t kReduceMostBlockRows = 8 * kReferenceMultiprocessors;
constexpr int64_t kReduceBlockRowBytes = 1 << 19;
// Up to this length a few lanes of a warp reduce the whole row.
constexpr int64_t kReduceShortRow = 4096;

// ---- Reductions of segments: the items that each thread has room for.
constexpr TileShape segmented_reduce_shape(int64_t state_bytes) {
  return {128, state_bytes > 32 ? 4 : state_bytes > 16 ? 8 : state_bytes > 4 ? 16 : 32};
}

// ---- Reductions of rows: a worker is a few neighbouring lanes, each of which has a vector of columns and takes one
// row after the other; a block's workers consume a tile of rows and segment ends. Up to 32 lanes read 512 bytes of a
// row, so that also of wide rows a tile has many, and what it leaves for the next is little beside them. A tile is as
// large as it may be while the tiles fill a large device in whole waves: a last wave of few tiles would cost a whole
// one.
constexpr int kReduceRowsThreads = 256;
constexpr int kReduceRowsMostLanes = 32;
constexpr int kReduceRowsTileUnits = 4096;                          // rows and ends, at most
constexpr int kReduceRowsLeastUnits = 4;                            // of a worker
constexpr int64_t kReduceRowsWave = 3 * kReferenceMultiprocessors;  // three blocks on each

struct RowTiling {
  int64_t units;  // of rows and ends in all
  int64_t width;  // columns
  int vector;     // that a lane has

  constexpr int64_t vectors() const { return ceil_div<int64_t>(width, vector); }
  // Ways to cut the columns, and the lanes that each takes.
  constexpr int64_t slices() const { return ceil_div<int64_t>(vectors(), kReduceRowsMostLanes); }
  constexpr int lanes() const { return width > 0 ? static_cast<int>(ceil_div(vectors(), slices())) : 1; }
  constexpr int workers() const { return kReduceRowsThreads / lanes(); }
  constexpr int worker_units() const {
    const int64_t least_tiles =
        maximum<int64_t>(ceil_div<int64_t>(units, kReduceRowsTileUnits / workers() * workers()), 1);
    const int64_t waves = ceil_div(least_tiles * slices(), kReduceRowsWave);
    const int64_t wanted_tiles = maximum(least_tiles, waves * kReduceRowsWave / slices());
    return maximum(static_cast<int>(ceil_div(units, wanted_tiles * workers())), kReduceRowsLeastUnits);
  }
  constexpr int tile_units() const { return workers() * worker_units(); }
  constexpr int64_t tiles() const { return ceil_div<int64_t>(units, tile_units()); }
};

// ---- Reductions by id, where a warp's states of all ids have room in shared memory: with its masks 48 KB at most,
// which every device grants. A part of the rows is a block's; two blocks of a large device's processors each take the
// largest arrays.
constexpr int kIdMasks = 512;  // a warp's words in which lanes of one id meet
constexpr int64_t kIdTableBytes = (48 << 10) - kIdMasks * 4;
constexpr int kIdMostWarps = 32;
constexpr int64_t kIdMostParts = 2 * kReferenceMultiprocessors;
constexpr int64_t kIdPartItems = 1 << 14;  // at least
// Sums of floats as integers: of so many results, each with a sum of 64 bits and an exponent.
constexpr int64_t kMostFixedPointIds = 1 << 15;
constexpr int64_t kFixedPointBytes = 12;
// Where order does not matter a block counts its items in 32 bits, and has whole rows.
constexpr int64_t kMostIdColumns = int64_t{1} << 30;
constexpr int64_t id_parts(int64_t items) { return clamp<int64_t>(ceil_div(items, kIdPartItems), 1, kIdMostParts); }

// ---- Heads of runs: 64 bytes a thread keep enough loads in flight. The counts of tiles are summed up in
// groups, here and in selections.
constexpr TileShape run_heads_shape(int key_width) { return {256, key_width == 8 ? 8 : 16}; }
constexpr int kTileGroup = 16;

// ---- Selection: what a thread reads of the mask is a vector of 16 bytes.
constexpr int kSelectThreads = 256;
constexpr int kSelectTile = 16 * kSelectThreads;

// ---- The first items of rows: a block goes over its part of a row tile by tile. It has room for `room` items beside
// each other, a tile more than it may keep.
constexpr int kTopKMost = 2048;
struct TopKShape {
  TileShape tiles;
  constexpr int tile() const { return tiles.tile(); }
  constexpr int room() const { return kTopKMost + tile(); }
};
constexpr int kTopKThreads = 512;
constexpr int kTopKManyThreads = 256;  // where there are more blocks than kTopKBlocks each: they wait at other times
constexpr TopKShape top_k_shape(int key_width, int threads = kTopKThreads) {
  return {{threads, maximum(key_width == 8 ? 4 : 8, 16 / key_width)}};
}
constexpr int kTopKSample = 2048;             // items at most, from which a bound is guessed
constexpr int kTopKSharedSamples = 2;         // times as many where several blocks share a row
constexpr int kTopKSampleShare = 4;           // where a row has so many times as many
constexpr int64_t kTopKBlocks = 2;            // that a multiprocessor should have, so that long rows are shared
constexpr int64_t kTopKLeastTiles = 4;        // of a part
constexpr int64_t kTopKMergedPart = 1 << 15;  // of what parts kept
constexpr int64_t kTopKMostRow = (int64_t{1} << 32) - 1;

// ---- The same of short rows: lanes of a warp have a row in registers, `items` each, and find up to `most` items. The
// first shape that fits is taken. What the lanes of a warp do together is 450 instructions, for one row or for two: so
// 16 lanes have a row while few items are asked for, as the 12th of their least items is a bound to which some 20 items
// come up; that of 32 lanes serves more. The list of these has room for 4 items a lane: twice the 64 that 32 lanes find
// at most, so that a bound is soon found for any k. One lane, and eight, compare all items of a row.
constexpr int kTopKRowThreads = 128;
constexpr int kTopKRowRoom = 4;  // of a lane
struct TopKRowShape {
  int lanes, items, most;
  constexpr int64_t length() const { return int64_t{lanes} * items; }
  constexpr bool takes(int64_t row, int64_t k) const { return row <= length() && k <= most; }
};
constexpr TopKRowShape kTopKRowShapes[] = {{1, 8, 8},   {8, 4, 32},   {16, 4, 12},  {16, 16, 12}, {16, 32, 12},
                                           {32, 8, 64}, {32, 16, 64}, {32, 32, 64}, {32, 64, 64}};
constexpr int kTopKRowShapeCount = sizeof(kTopKRowShapes) / sizeof(TopKRowShape);
constexpr TopKRowShape kTopKRowLargest = kTopKRowShapes[kTopKRowShapeCount - 1];  // takes all that others take

// ---- Counting in bins, in shared memory: with a counter a lane for each bin, lanes never wait for each other,
// whatever the items. So many bins have one counter each on every device, and their edges and a table to find them have
// room too.
constexpr int kCountBinsThreads = 512;
constexpr int kMostCountedBins = 12288;
constexpr int kMostCountedEdges = 2048;
constexpr int kEdgeSlots = 1024;         // of the table: more take each block longer to fill
constexpr int64_t kCountPart = 1 << 13;  // items, at least, of a block

// ---- Items at ranks of the sorted order: digits of so many bits a pass, and as many ranks at once as every device has
// room for the counters of.
constexpr int kRankDigitBits = 11;
constexpr int kRankDigits = 1 << kRankDigitBits;
constexpr int kMostRanks = 7;
constexpr int64_t kRankPart = 1 << 14;  // items, at least, of a block
// The ranks of one quantile in long rows, the two beside it and the last: a sample of the row tells an interval for
// each. From so many items on, of a row and of all rows, that takes less time.
constexpr int kMostIntervals = 3;
constexpr int64_t kRankSampledRow = 1 << 18;
constexpr int64_t kRankSampledItems = 1 << 24;
constexpr int kRankSampleBytes = 32 << 10;
constexpr int64_t kRankGatheredPart = 1 << 15;  // of what lies in the intervals: a block adds up as many counters

// ---- Searches by group: a block walks its part of the rows with a table of all groups in shared memory. Of so many
// groups, and with what a tile takes, every device has room for it, and a large one's processors for three. The tables
// of all parts go through memory, so there are no more parts than blocks that run at once; the scratch memory is that
// of the reference device.
constexpr int kGroupTable = 12288;
constexpr TileShape kGroupSearchShape{256, 4};
constexpr int kGroupSearchBlocks = 3;          // that a multiprocessor should hold
constexpr int64_t kGroupSearchPart = 1 << 13;  // rows of both sides, at least
constexpr int kGroupLastsThreads = 512;

// ---- Joins by buckets: a block has a bucket's rows of b in shared memory, with where the entries of each slot of its
// table begin, 40 KB, and a chunk of the bucket's rows of a in registers. The entries of a slot put themselves in
// order, each by a look at all others; where a slot has more than kBucketListMost, the block sorts the bucket. Chunks
// beyond the first of a bucket are rare, and shared by a fixed number of blocks.
constexpr TileShape kBucketShape{512, 8};
constexpr int kBucketCapacity = kBucketShape.tile();  // rows of b
constexpr int kBucketChunk = kBucketShape.tile();     // rows of a
constexpr int kBucketSlotBits = 12;
constexpr int kBucketListMost = 32;
constexpr int kBucketBlocks = 3;                                       // that a multiprocessor should hold
constexpr int64_t kBucketExtraBlocks = 8 * kReferenceMultiprocessors;  // at most, for chunks beyond the first

// ---- Scans: what a thread loads at a time where nothing restarts inside a row are vectors of 16 bytes.
constexpr int kScanThreads = 256;
constexpr int kScanVectors = 4;
constexpr int64_t kScanTileBytes = kScanThreads * kScanVectors * 16;
// With restarts, 64 bytes of states a thread stay in registers, and leave room for enough blocks to hide each other's
// waiting; a thread loads 16 bytes at least.
constexpr TileShape scan_segments_shape(int64_t state_bytes, int64_t element_bytes) {
  return {kScanThreads, static_cast<int>(maximum(64 / state_bytes, 16 / element_bytes))};
}

// ---- Softmax of segments: a thread's items, and what it makes of them, stay in registers.
constexpr TileShape softmax_shape(int64_t accumulator_bytes) { return {256, accumulator_bytes > 4 ? 8 : 16}; }

}  // namespace mgpu
