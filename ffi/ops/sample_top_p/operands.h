// Draws a token of each row, among the most probable ones.
#pragma once

#include "algorithm/index_vector.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

struct RowNumber {
  const float* data;
  int64_t stride;  // from row to row
  MGPU_HOST_DEVICE float operator[](int64_t row) const { return data[row * stride]; }
};

// Operands: logits [.., n] of float16, bfloat16 or float32, and four of float32 [.., 1]: u, in [0, 1), which selects
// the token; temperature; mass, the total probability of the most probable tokens that are kept; share, the least
// probability of a kept token, relative to the most probable one. Result: token [.., 1], or -1 if no logit is above
// -inf.
struct SampleTopPOperands {
  DType type;
  int64_t rows;
  int64_t length;
  const void* logits;
  RowNumber u, temperature, mass, share;
  IndexResult token;

  explicit SampleTopPOperands(const Call& call);

  // These are for CUDA (plan.h).
  MGPU_HOST_DEVICE int64_t parts() const;
  MGPU_HOST_DEVICE int64_t room() const;
  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
