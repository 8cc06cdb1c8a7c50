// How CUDA finds the candidates of top_k: the sample, the parts of a row, and scratch memory.
#pragma once

#include "cuda/device.h"
#include "ops/top_k_candidates/operands.h"

namespace mgpu {

constexpr int kCandidateThreads = 256;
constexpr int kCandidateGroup = 1024;  // items of a warp, with a bit each
constexpr int kCandidateWords = 32;    // of these bits, one for each lane
constexpr int kCandidateSampleThreads = 1024;
// The items of a row's sample. Each costs a sector of memory, so that a larger one of a short row would cost a pass.
constexpr int64_t candidate_sample(int64_t length, int key_width) {
  return clamp<int64_t>(length / 32, 2048, (32 << 10) / maximum(key_width, 4));
}
constexpr int64_t kCandidatePart = 1 << 14;  // the least items per block
constexpr int64_t kCandidateBlocks = 8;      // per multiprocessor, if rows are few: then blocks share a row

// The groups of a row. The row may begin within its first group. A block has a part of them.
struct TopKCandidatesOperands::Parts {
  int64_t groups;  // of a row
  int64_t part;    // groups of a part
  int64_t parts;   // of a row
};

// Scratch memory of the CUDA kernels.
struct TopKCandidatesOperands::Scratch {
  uint64_t* bounds;  // [rows]: the rank up to which items may be candidates
  uint32_t* marks;   // [rows, groups, kCandidateWords]: a bit for each item below the bound
  uint32_t* below;   // [rows, parts]: items of lower rank than the bound
  uint32_t* equal;   // [rows, parts]: items of the bound's rank
};

}  // namespace mgpu
