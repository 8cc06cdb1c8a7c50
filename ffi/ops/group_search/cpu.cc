// Each task walks along a part of the rows of both sides, with a table of the last row of b of each group.
#include <algorithm>
#include <vector>

#include "algorithm/segments.h"
#include "cpu/policy.h"
#include "ops/group_search/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

template <typename Index, bool kForward>
struct Search {
  using Walk = GroupWalk<Index, kForward>;

  const GroupSearchOperands& operands;
  cpu::Executor& executor;
  const int64_t parts = operands.parts(cpu::kGroupSearchParts, cpu::kGroupSearchPart);
  std::vector<int64_t> splits{};  // rows of a before each part
  std::vector<Index> lasts{};     // the last row of b of each group before each part, if there are several parts

  int64_t width_of(const Walk& walk) const { return ceil_div(walk.slots(), parts); }

  const int64_t* rows_of_a(int64_t problem, int64_t part) const { return splits.data() + problem * (parts + 1) + part; }

  Range<int64_t> rows_of_b(const Walk& walk, int64_t problem, int64_t part) const {
    const int64_t width = width_of(walk);
    const int64_t* const before = rows_of_a(problem, part);
    return {minimum(part * width, walk.slots()) - before[0], minimum((part + 1) * width, walk.slots()) - before[1]};
  }

  // Parts of a do not overlap even if cuts are not sorted, so no two tasks write the same place.
  void split() {
    splits.resize(operands.problems * (parts + 1));
    cpu::parallel_for(executor, operands.problems, [&](int64_t problem) {
      const auto walk = operands.walk<Index, kForward>(problem);
      const int64_t width = width_of(walk);
      int64_t* const before = splits.data() + problem * (parts + 1);
      for (int64_t part = 1; part <= parts; ++part) {
        const int64_t slot = minimum(part * width, walk.slots());
        const int64_t taken = minimum((part - 1) * width, walk.slots());
        const int64_t found = walk.split(slot, [](auto... search) { return partition_point(search...); });
        before[part] = clamp(found, before[part - 1], before[part - 1] + slot - taken);
      }
    });
  }

  void find_lasts() {
    lasts.assign(operands.problems * parts * kGroupTable, -1);
    cpu::parallel_for(executor, operands.problems * parts, [&](int64_t task) {
      const int64_t problem = task / parts;
      const auto walk = operands.walk<Index, kForward>(problem);
      enter(walk, rows_of_b(walk, problem, task - problem * parts), lasts.data() + task * kGroupTable);
    });
    for (int64_t problem = 0; problem < operands.problems; ++problem) {
      const uint32_t groups = operands.groups(problem);
      std::vector<Index> before(groups, -1);
      for (int64_t part = 0; part < parts; ++part) {
        Index* const table = lasts.data() + (problem * parts + part) * kGroupTable;
        for (uint32_t group = 0; group < groups; ++group) {
          const Index last = table[group];
          table[group] = before[group];
          if (last >= 0) before[group] = last;
        }
      }
    }
  }

  static void enter(const Walk& walk, Range<int64_t> rows, Index* table) {
    for (int64_t j = rows.begin; j < rows.end; ++j) {
      const uint32_t group = walk.group(walk.b_groups[walk.b_row(j)]);
      if (group < walk.groups) table[group] = static_cast<Index>(j);
    }
  }

  void find() {
    cpu::parallel_for(executor, operands.problems * parts, [&](int64_t task) {
      const int64_t problem = task / parts;
      const int64_t part = task - problem * parts;
      const auto walk = operands.walk<Index, kForward>(problem);
      std::vector<Index> own(parts > 1 ? 0 : walk.groups, -1);
      Index* const table = parts > 1 ? lasts.data() + task * kGroupTable : own.data();
      const int64_t* const before = rows_of_a(problem, part);
      const Range<int64_t> rows = rows_of_b(walk, problem, part);
      int64_t j = rows.begin;
      for (int64_t i = before[0]; i < before[1]; ++i) {
        const int64_t end = maximum(j, minimum<int64_t>(walk.cut(i), rows.end));
        enter(walk, {j, end}, table);
        j = end;
        const uint32_t group = walk.group(walk.a_groups[walk.a_row(i)]);
        const Index last = group < walk.groups ? table[group] : Index{-1};
        walk.positions[walk.a_row(i)] = last < 0 ? Index{-1} : static_cast<Index>(walk.b_row(last));
      }
      if (part == 0) std::fill(walk.positions + walk.a_live, walk.positions + operands.a_length, Index{-1});
    });
  }
};

}  // namespace

void cpu::group_search(const Call& call, Executor& executor) {
  const GroupSearchOperands operands(call);
  if (operands.problems * operands.a_length == 0) return;
  operands.dispatch([&](auto index, auto forward) {
    Search<decltype(index), forward()> search{operands, executor};
    search.split();
    if (search.parts > 1) search.find_lasts();
    search.find();
  });
}

}  // namespace mgpu
