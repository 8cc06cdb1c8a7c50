#pragma once

#include "ops/segmented_search/operands.h"
#include "ops/segmented_search/search_tree.h"
#include "runtime/plan.h"

namespace mgpu {

class Workspace;

enum class SegmentedSearchVariant { kTree, kTreeWithSmallTop, kSingleSearches };

struct SegmentedSearchPlan {
  const SegmentedSearchOperands& operands;
  SegmentedSearchVariant variant;
  const char* name = "";
  const char* condition = "";

  SegmentedSearchPlan(const SegmentedSearchOperands& operands, const Traits& traits);
  SegmentedSearchPlan(const SegmentedSearchOperands& operands, SegmentedSearchVariant variant)
      : operands(operands), variant(variant) {}
  bool has_tree() const { return variant != SegmentedSearchVariant::kSingleSearches; }
  SearchTree layout(Workspace& workspace) const;
};

}  // namespace mgpu
