#include "ops/sample_top_p/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

SampleTopPOperands::Scratch SampleTopPOperands::layout(Workspace& workspace) const {
  const int64_t begin = workspace.used();
  Scratch scratch{};
  scratch.state = workspace.take<SampleRow>(rows);
  scratch.bins = workspace.take<unsigned long long>(rows * kSampleBins);
  scratch.bytes = workspace.used() - begin;
  scratch.candidates = workspace.take<SampleCandidate>(rows * room());
  return scratch;
}

int64_t workspace::sample_top_p(const Call& call) { return layout_bytes(SampleTopPOperands(call)); }

}  // namespace mgpu
