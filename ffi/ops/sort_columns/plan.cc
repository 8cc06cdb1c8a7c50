#include "ops/sort_columns/plan.h"

#include "runtime/call.h"
#include "runtime/operations.h"
#include "runtime/plan.h"
#include "runtime/signature.h"
#include "runtime/workspace.h"

namespace mgpu {

namespace {

int64_t shared_bytes(const SortColumnsOperands& of) { return SortColumnsPlan::shared_bytes(of.payload_width); }

// The values are whether tiles are small.
constexpr PlanRow<bool, SortColumnsOperands> kTable[] = {
    {false, "digits of columns", "long tiles", nullptr, shared_bytes},
    {true, "digits of columns", "tiles for devices with less shared memory"},
};

}  // namespace

SortColumnsPlan::SortColumnsPlan(const SortColumnsOperands& operands, const Traits& traits)
    : SortColumnsPlan(operands, plan_row(kTable, operands, traits).variant) {}

SortColumnsScratch SortColumnsPlan::layout(Workspace& workspace) const {
  SortColumnsScratch scratch{};
  scratch.words = workspace.take<uint64_t>(operands.total() + 1);
  scratch.payload = workspace.take<char>(operands.total() * operands.payload_width);
  const int tile = column_digit_shape(operands.payload_width, is_small).tile();
  scratch.digits = DigitCounts::take(workspace, operands.rows, operands.length, kPlaces, tile, sizeof(uint32_t));
  return scratch;
}

void column_tile_sizes(TileSizes& sizes) {
  for (int width : {0, 4, 8}) {
    for (bool small : {false, true}) sizes["sort_columns"].insert(column_digit_shape(width, small).tile());
  }
}

PlanReport report_columns(const Call& call, const Traits& traits) {
  const SortColumnsOperands operands(call);
  const auto& row = plan_row(kTable, operands, traits);
  const SortColumnsPlan plan(operands, row.variant);
  const int tile = column_digit_shape(operands.payload_width, plan.is_small).tile();
  return {row.name, row.condition, {{"tile", tile}}, SortColumnsPlan::kPlaces + 0.5, layout_bytes(plan)};
}

int64_t workspace::sort_columns(const Call& call) {
  const SortColumnsOperands operands(call);
  return most_bytes(kTable, operands,
                    [&](const auto& row) { return layout_bytes(SortColumnsPlan(operands, row.variant)); });
}

}  // namespace mgpu
