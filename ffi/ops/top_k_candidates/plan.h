#pragma once

#include "cuda/device.h"
#include "ops/top_k_candidates/operands.h"

namespace mgpu {

constexpr int kCandidateThreads = 256;
constexpr int kCandidateGroup = 1024;  // items that a warp takes at a time; each has a bit
constexpr int kCandidateWords = 32;    // words with these bits, one per lane
constexpr int kCandidateSampleThreads = 1024;
// Each item of a sample costs the read of a
// sector, so short rows have smaller samples.
constexpr int64_t candidate_sample(int64_t length, int key_width) {
  return clamp<int64_t>(length / 24, 2048, (32 << 10) / maximum(key_width, 4));
}
constexpr int64_t kCandidatePart = 1 << 14;  // the fewest items of a block, unless the row ends before
constexpr int64_t kCandidateBlocks = 8;      // per multiprocessor; if there are few rows, blocks share a row

// Groups are counted from the 16-byte boundary at or before a row. A block takes a part: up to `part` groups.
struct TopKCandidatesOperands::Parts {
  int64_t groups;
  int64_t part;
  int64_t parts;
};

struct TopKCandidatesOperands::Scratch {
  uint64_t* bounds;  // [rows]: the rank (Order::rank) that candidates do not exceed
  uint32_t* marks;   // [rows, groups, kCandidateWords]: a bit for each item below the bound
  uint32_t* below;   // [rows, parts]: items of lower rank than the bound
  uint32_t* equal;   // [rows, parts]: items of the bound's rank
};

}  // namespace mgpu
