// How CUDA samples tokens: parts of rows, bins of weights, and scratch memory.
#pragma once

#include "ops/sample_top_p/operands.h"

namespace mgpu {

constexpr int kSampleThreads = 256;
constexpr int kSamplePart = 1 << 14;  // items per block
constexpr int kSampleBins = 2048;
constexpr int kSampleListed = 2048;  // candidates of a part, at most
constexpr int kSampleDrawThreads = 256;

// In a bin, weights relative to that at the bin's middle are added as integers with this many fractional bits. As these
// weights are near 1, the sum of 2^14 of them fits 32 bits.
constexpr int kSampleBinBits = 17;

MGPU_HOST_DEVICE int64_t SampleTopPOperands::parts() const { return ceil_div<int64_t>(length, kSamplePart); }
MGPU_HOST_DEVICE int64_t SampleTopPOperands::room() const { return parts() * kSampleListed; }

struct SampleBins {
  int first, last;  // none if first > last
};

// The state of a row between kernels.
struct SampleRow {
  unsigned long long best;                     // the code of the largest logit, and the complement of its position
  unsigned least;                              // the complement of the code of the smallest finite logit
  unsigned counted;                            // parts that are done
  unsigned listed;                             // the number of candidates
  unsigned is_full;                            // whether candidates are missing
  SampleBins cut, draw;                        // the bins with the last kept token, and with the drawn one
  unsigned long long total;                    // the sum of all weights
  unsigned long long before_cut, before_draw;  // the sums of the weights in the bins before these
};

// A token that may be the last kept one, or the drawn one.
struct SampleCandidate {
  uint32_t code;  // an unsigned integer, whose order is that of the logits
  uint32_t position;
};

// Scratch memory of the CUDA kernels. All of it but the candidates is zeroed before the first kernel.
struct SampleTopPOperands::Scratch {
  SampleRow* state;             // [rows]
  unsigned long long* bins;     // [rows, kSampleBins]
  int64_t bytes;                // the size of the zeroed memory, which begins at `state`
  SampleCandidate* candidates;  // [rows, room()]
};

}  // namespace mgpu
