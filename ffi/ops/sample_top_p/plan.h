#pragma once

#include "ops/sample_top_p/operands.h"

namespace mgpu {

constexpr int kSampleThreads = 256;
constexpr int kSamplePart = 1 << 14;  // logits of a part of a row, which a block takes
constexpr int kSampleBins = 2048;
constexpr int kSampleListed = 2048;  // the most candidates of a part that are listed
constexpr int kSampleDrawThreads = 256;

// Within a bin, a weight is divided by the weight at the bin's middle, as an integer with this many fractional bits. As
// each quotient is near 1, the sum of 2^14 of them fits 32 bits.
constexpr int kSampleBinBits = 17;

MGPU_HOST_DEVICE int64_t SampleTopPOperands::parts() const { return ceil_div<int64_t>(length, kSamplePart); }
MGPU_HOST_DEVICE int64_t SampleTopPOperands::room() const { return parts() * kSampleListed; }

struct SampleBins {
  int first, last;  // there are no bins if first > last
};
struct SampleRange {
  uint32_t first, last;  // codes of logits; the range is empty if first > last
};

struct SampleRow {
  unsigned long long best;  // upper half: the largest logit's code; lower half: the complement of its position
  unsigned least;           // the complement of the code of the smallest logit above -inf
  unsigned counted;         // the number of parts whose bins are added up
  unsigned listed;
  unsigned is_full;          // whether some candidates found no place in the list
  SampleRange cut, draw;     // the logits in the bins that have the last kept token, and the drawn one
  bool has_mass;             // whether the bins of `cut` have the token at which the asked mass is reached
  unsigned long long total;  // the sum of all weights
  unsigned long long before_cut, before_draw;  // the sums of the weights in the bins before `cut` and `draw`
};

struct SampleCandidate {
  uint32_t code;  // an unsigned integer with the order of the logits
  uint32_t position;
};

// All arrays but the candidates are zeroed before the first kernel.
struct SampleTopPOperands::Scratch {
  SampleRow* state;             // [rows]
  unsigned long long* bins;     // [rows, kSampleBins]
  int64_t bytes;                // the size of the zeroed memory, which begins at `state`
  SampleCandidate* candidates;  // [rows, room()]
};

}  // namespace mgpu
