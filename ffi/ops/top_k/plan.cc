#include "ops/top_k/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

TopKOperands::Levels TopKOperands::levels() const {
  constexpr int64_t kMaxPart = int64_t{1} << 30;  // a block counts with 32 bits
  const int64_t tile = top_k_shape(byte_width(key_type)).tile();
  Levels levels;
  const auto add = [&](int64_t items, int64_t part) {
    if (levels.count == Levels::kMaxLevels) throw CallError("top_k: x: expected fewer items");
    levels.part[levels.count] = part;
    levels.parts[levels.count] = maximum<int64_t>(1, ceil_div(items, part));
    ++levels.count;
  };
  const int64_t blocks = maximum<int64_t>(1, kTopKBlocks * kReferenceMultiprocessors / maximum<int64_t>(1, rows));
  add(length, clamp<int64_t>(ceil_div(length, blocks), maximum(kTopKMinTiles * tile, 4 * k), kMaxPart));
  while (levels.parts[levels.count - 1] > 1) {
    const int64_t items = levels.parts[levels.count - 1] * k;  // no items if k is 0
    add(items, items <= 2 * kTopKMergedPart ? maximum<int64_t>(1, items) : kTopKMergedPart);
  }
  return levels;
}

TopKOperands::Scratch TopKOperands::layout(Workspace& workspace) const {
  const Levels levels = this->levels();
  Scratch scratch{};
  for (int level = 0; level < minimum(levels.count - 1, 2); ++level) {  // later levels keep less, and reuse the buffers
    const int64_t items = rows * levels.parts[level] * k;
    scratch.kept[level] = {workspace.take<char>(items * byte_width(key_type)), workspace.take<uint32_t>(items)};
  }
  scratch.counts = workspace.take<uint32_t>((levels.count - 1) * rows);
  return scratch;
}

int64_t workspace::top_k(const Call& call) {
  const TopKOperands operands(call);
  if (operands.k > kTopKMaxK) call.fail("k: expected at most " + std::to_string(kTopKMaxK));
  return layout_bytes(operands);
}

}  // namespace mgpu
