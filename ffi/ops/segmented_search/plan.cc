#include "ops/segmented_search/plan.h"

#include "runtime/operations.h"
#include "runtime/workspace.h"

namespace mgpu {

namespace {

using SearchRow = PlanRow<SegmentedSearchVariant, SegmentedSearchOperands>;

int search_key_width(const SegmentedSearchOperands& operands) { return byte_width(operands.key_type); }

// Making the tree reads the whole haystack, so it pays only for enough needles.
constexpr int64_t kMinSearchNeedles = 1 << 17;
constexpr int64_t kMinSearchRowNeedles = 1 << 10;
constexpr int64_t kSearchNeedleKeys = 32;
constexpr int64_t kMinMeanSegment = 64;

bool prefers_tree(const SegmentedSearchOperands& operands) {
  const int64_t needles = operands.pair.a.length;
  const int64_t keys = operands.pair.b.length;
  return needles >= kMinSearchRowNeedles && needles * operands.pair.rows >= kMinSearchNeedles &&
         needles * kSearchNeedleKeys >= keys && (operands.segments == 1 || operands.segments * kMinMeanSegment <= keys);
}

constexpr const char* kManyNeedles =
    "from 2^17 needles on, at least 2^10 per row and one per 32 keys, in segments of 64 keys on average";

const SearchRow kSearchTable[] = {
    {SegmentedSearchVariant::kTree, "search tree", kManyNeedles, prefers_tree,
     [](const SegmentedSearchOperands& operands) {
       return SearchTree::of(operands, SearchTree::kTopBytes).shared_bytes(search_key_width(operands));
     }},
    {SegmentedSearchVariant::kTreeWithSmallTop, "search tree with a small top", kManyNeedles, prefers_tree},
    {SegmentedSearchVariant::kSingleSearches, "single searches", "always"},
};

}  // namespace

SearchTree SearchTree::of(const SegmentedSearchOperands& operands, int64_t max_top_bytes) {
  const int width = search_key_width(operands);
  const int64_t fanout = SearchTree::fanout(width);
  const SortedRows& haystack = operands.pair.b;
  // The number of keys of a level, and one more, as the haystack may begin anywhere in its first sector.
  const auto keys_of_level = [&](int64_t gap) { return (haystack.length + fanout - 1) / gap + 1; };
  SearchTree tree;
  int64_t gap = 1;
  while (keys_of_level(gap) > max_top_keys(width, max_top_bytes)) {
    gap *= fanout;
    tree.offsets[++tree.levels] = tree.row_keys;
    tree.row_keys += ceil_div(keys_of_level(gap), fanout) * fanout;
  }
  tree.top_keys = static_cast<int>(keys_of_level(gap));
  tree.has_prefixes = width == 8 && operands.segments == 1 && tree.levels > SearchTree::kPrefixLevel;
  const bool is_shared = haystack.stride == 0;
  tree.rows = is_shared ? 1 : operands.pair.rows;
  tree.row_stride = is_shared ? 0 : tree.row_keys;
  return tree;
}

SegmentedSearchPlan::SegmentedSearchPlan(const SegmentedSearchOperands& operands, const Traits& traits)
    : operands(operands) {
  const SearchRow& row = plan_row(kSearchTable, operands, traits);
  variant = row.variant;
  name = row.name;
  condition = row.condition;
}

SearchTree SegmentedSearchPlan::layout(Workspace& workspace) const {
  if (!has_tree()) return {};
  const bool has_small_top = variant == SegmentedSearchVariant::kTreeWithSmallTop;
  SearchTree tree = SearchTree::of(operands, has_small_top ? SearchTree::kSmallTopBytes : SearchTree::kTopBytes);
  tree.keys = workspace.take<char>(tree.rows * tree.row_keys * search_key_width(operands));
  return tree;
}

PlanReport report_segmented_search(const Call& call, const Traits& traits) {
  const SegmentedSearchOperands operands(call);
  const SegmentedSearchPlan plan(operands, traits);
  return {plan.name, plan.condition, {}, 1, layout_bytes(plan)};
}

int64_t workspace::segmented_search(const Call& call) {
  const SegmentedSearchOperands operands(call);
  return max_bytes(kSearchTable, operands,
                   [&](const SearchRow& row) { return layout_bytes(SegmentedSearchPlan(operands, row.variant)); });
}

}  // namespace mgpu
