#include <utility>

#include "cpu/policy.h"
#include "ops/common/read.h"
#include "ops/sorted_search/plan.h"

namespace mgpu {

const Signature signature::sorted_search{
    .operands = {"needles: key [n]", "haystack: =needles [m]", "needles_count: index [1]?",
                 "haystack_count: index [1]?"},
    .results = {"positions: index [n]"},
    .attributes = {{"right"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["sorted_search"] = {cpu::kMergeTile};
          for (bool large_stages : {false, true}) {
            for (int width : kKeyWidths) sizes["sorted_search"].insert(search_shape(width, false, large_stages).tile());
          }
        },
};

SortedSearchOperands::SortedSearchOperands(const Call& call) {
  const Arguments in(call, signature::sorted_search);
  const Array& result = in.result("positions");
  key_type = in["needles"].dtype;
  needles_are_b = in.flag("right");
  pair = read_sorted_pair(call, in["needles"], in["haystack"], in["needles_count"], in["haystack_count"],
                          Call::batch(result, 1));
  positions = call.index_result(result, pair.rows * pair.a.length, "positions");
  if (needles_are_b) pair = pair.swapped();
}

const Signature signature::sorted_match{
    .operands = {"a: key [n]", "b: =a [m]", "a_count: index [1]?", "b_count: index [1]?"},
    .results = {"a_index: index [n]", "b_index: =a_index [m]", "a_match: bool [n]", "b_match: bool [m]",
                "a_match_count: =a_index []", "b_match_count: =a_index []"},
    .attributes = {{"right"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["sorted_match"] = {cpu::kMergeTile};
          for (bool large_stages : {false, true}) {
            for (int width : kKeyWidths) sizes["sorted_match"].insert(search_shape(width, true, large_stages).tile());
          }
        },
};

SortedMatchOperands::SortedMatchOperands(const Call& call) {
  const Arguments in(call, signature::sorted_match);
  key_type = in["a"].dtype;
  pair = read_sorted_pair(call, in["a"], in["b"], in["a_count"], in["b_count"], Call::batch(in.result("a_index"), 1));
  const auto side = [&](const char* index, const char* match, const char* count, const SortedRows& keys) -> Side {
    const int64_t items = pair.rows * keys.length;
    return {call.index_result(in.result(index), items, index), in.result(match).as<bool>(),
            call.index_result(in.result(count), pair.rows, count)};
  };
  a = side("a_index", "a_match", "a_match_count", pair.a);
  b = side("b_index", "b_match", "b_match_count", pair.b);
  if (in.flag("right")) {
    pair = pair.swapped();
    std::swap(a, b);
  }
}

}  // namespace mgpu
