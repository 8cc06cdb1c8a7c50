#pragma once

#include "algorithm/look_back.h"
#include "cuda/tile_shape.h"
#include "ops/scan/operands.h"

namespace mgpu {

// In scan_tiles and scan_rows, a thread loads kScanVectors vectors of numbers at a time, of 16 bytes each.
constexpr int kScanThreads = 256;
constexpr int kScanVectors = 4;
constexpr int64_t kScanTileBytes = kScanThreads * kScanVectors * 16;
// In scan_segments, a thread has 64 bytes of states in registers,
// or the states of 16 bytes of elements if these are more.
constexpr TileShape scan_segments_shape(int64_t state_bytes, int64_t element_bytes) {
  return {kScanThreads, static_cast<int>(maximum(64 / state_bytes, 16 / element_bytes))};
}

struct ScanOperands::Tiles {
  int64_t per_row;  // the tiles of one look-back: those of a row, or all tiles if `rows` is 1
  int64_t rows;
  int64_t state_bytes;
  int64_t count() const { return per_row * rows; }
  int64_t look_back_words() const { return 1 + rows * LookBackLayout{per_row}.words(state_bytes); }
};

// A ticket counter with the tiles' look-back words, and the number of listed heads before each tile of the segmented
// kernel. There is always room for this kernel (Path::kSegments), which can replace the others.
struct ScanOperands::Scratch {
  uint64_t* look_back;
  int64_t* listed;
};

}  // namespace mgpu
