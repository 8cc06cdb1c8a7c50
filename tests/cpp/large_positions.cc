// Arithmetic beyond 2^32 on any machine: the algorithms read operands through functions or a few heads, so operands of
// 2^40 items need no memory.
#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "algorithm/balanced_path.h"
#include "algorithm/load_balance.h"
#include "algorithm/merge_path.h"
#include "algorithm/run_split.h"
#include "algorithm/segments.h"
#include "check.h"
#include "ops/intervals/operands.h"
#include "ops/reduce/operands.h"
#include "ops/reduce_rows/plan.h"
#include "runtime/call.h"

namespace mgpu::testing {

namespace {

constexpr int64_t kFar = int64_t{1} << 40;

const auto kFind = [](auto begin, auto end, auto before) { return partition_point(begin, end, before); };
const auto kLess = [](int64_t x, int64_t y) { return x < y; };

std::vector<int64_t> positions_up_to(int64_t end) {
  std::vector<int64_t> positions{0, 1, end / 2, end - 1, end};
  for (const int bits : {31, 32, 33, 39}) {
    for (int64_t offset = -2; offset <= 2; ++offset) positions.push_back((int64_t{1} << bits) + offset);
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) positions.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(end + 1)));
  std::erase_if(positions, [=](int64_t position) { return position < 0 || position > end; });
  return positions;
}

}  // namespace

TEST(searches_of_many_items) {
  for (const int64_t cut : positions_up_to(kFar)) {
    const auto before = [=](int64_t i) { return i < cut; };
    CHECK(partition_point(int64_t{0}, kFar, before) == cut);
    CHECK(galloping_partition_point(int64_t{0}, kFar, before) == cut);
    CHECK(partition_point_near_end(int64_t{0}, kFar, before, kFind) == cut);
  }
}

TEST(merge_paths_of_many_items) {
  // A holds every third number, and B the two numbers between: the i-th item of the merge is i.
  const auto a = [](int64_t i) { return 3 * i; };
  const auto b = [](int64_t j) { return j / 2 * 3 + j % 2 + 1; };
  for (const int64_t diagonal : positions_up_to(3 * kFar)) {
    CHECK(merge_path(kFar, 2 * kFar, diagonal, a, b, kLess) == (diagonal + 2) / 3);
  }
  const auto same = [](int64_t) { return int64_t{7}; };
  for (const int64_t diagonal : positions_up_to(3 * kFar)) {
    CHECK(merge_path(kFar, 2 * kFar, diagonal, same, same, kLess) == std::min(diagonal, kFar));
  }
}

TEST(balanced_paths_of_many_items) {
  // Each key is once in A and once in B, and no split separates the two.
  const auto once = [](int64_t i) { return i; };
  const auto same = [](int64_t) { return int64_t{7}; };
  for (const bool duplicates : {false, true}) {
    for (const int64_t diagonal : positions_up_to(2 * kFar)) {
      const Split<int64_t> split = balanced_path(kFar, kFar, diagonal, once, once, kLess, duplicates, kFind);
      CHECK(split.a == (diagonal + 1) / 2 && split.b == split.a);
    }
  }
  // One key is twice as often in B: its pairs come first, then B's other copies.
  for (const int64_t diagonal : positions_up_to(3 * kFar)) {
    const Split<int64_t> split = balanced_path(kFar, 2 * kFar, diagonal, same, same, kLess, true, kFind);
    CHECK(split.a == std::min((diagonal + 1) / 2, kFar));
    CHECK(split.b == (diagonal < 2 * kFar ? split.a : diagonal - kFar));
  }
}

TEST(splits_of_four_long_runs) {
  constexpr int kSamples = 8;
  const int64_t lengths[kRuns] = {kFar, kFar, kFar, kFar};
  for (const int64_t rank : positions_up_to(4 * kFar)) {
    RunSplit<int64_t, kSamples> split(lengths, rank);
    for (bool decided = true; decided;) {
      decided = false;
      const auto keys = [&](int j, int s) { return 4 * split.sample(split.begin[j], split.end[j], s) + j; };
      int in[kRuns] = {}, out[kRuns] = {};
      for (int j = 0; j < kRuns; ++j) {
        for (int s = 0; s < kSamples && split.begin[j] < split.end[j]; ++s) {
          const int said = split.judge(j, s, keys(j, s), keys, kLess);
          in[j] += said > 0;
          out[j] += said < 0;
        }
      }
      for (int j = 0; j < kRuns; ++j) {
        if (in[j] + out[j] == 0) continue;
        split.narrow(j, in[j], out[j]);
        decided = true;
      }
    }
    split.finish(lengths);
    for (int j = 0; j < kRuns; ++j) CHECK(split.begin[j] == (rank + 3 - j) / 4);
  }
}

TEST(segments_of_many_items) {
  constexpr int64_t kLength = (int64_t{1} << 33) + 17;
  std::vector<int64_t> heads{5,
                             int64_t{1} << 31,
                             int64_t{1} << 32,
                             (int64_t{1} << 32) + 3,
                             kLength - 1,
                             kLength,
                             std::numeric_limits<int64_t>::max()};
  const auto count = static_cast<int64_t>(heads.size());
  Segments segments;
  segments.rows = 3;
  segments.length = kLength;
  segments.heads = {heads.data(), true};
  segments.heads_count = count;
  for (int64_t row = 0; row < 3; ++row) {
    for (const int64_t offset : positions_up_to(kLength - 1)) {
      const int64_t position = row * kLength + offset;
      const auto next = std::upper_bound(heads.begin(), heads.end(), offset);
      const int64_t begin = next == heads.begin() ? 0 : *std::prev(next);
      const Range<int64_t> segment = segments.segment_of(position, kFind);
      CHECK(segment.begin == row * kLength + begin);
      CHECK(segment.end == row * kLength + std::min(*next, kLength));

      const int64_t first = std::lower_bound(heads.begin(), heads.end(), offset) - heads.begin();
      const int64_t listed = segments.listed_from(position, kFind);
      CHECK(listed == row * (count + 1) + (offset == 0 ? 0 : 1 + first));
      const Range<int64_t> tile{position, std::min(position + 8, segments.total())};
      std::vector<int64_t> marked;
      segments.mark_heads(tile, {listed, segments.listed_from(tile.end, kFind)}, 0, 1,
                          [&](int64_t at) { marked.push_back(at); });
      for (int64_t at = tile.begin; at < tile.end; ++at) {
        const int64_t in_row = at % kLength;
        const bool is_head = in_row == 0 || std::find(heads.begin(), heads.end(), in_row) != heads.end();
        CHECK((std::count(marked.begin(), marked.end(), at) > 0) == is_head);
      }
    }
  }

  // Items and ends in one order, split at any position. An end comes after the items before it.
  const SegmentEnds ends{segments};
  for (const int64_t diagonal : positions_up_to(ends.units())) {
    const int64_t items = ends.items_before(diagonal, kFind);
    const int64_t closed = diagonal - items;
    CHECK(0 <= items && items <= segments.total() && 0 <= closed && closed <= ends.count());
    CHECK(closed == 0 || ends[closed - 1] <= items);
    CHECK(closed == ends.count() || ends[closed] >= items);
  }
}

TEST(merge_rounds_of_many_items) {
  constexpr int64_t kWidth = 4352;
  const Range<int64_t> segment{kFar + 1, 5 * kFar + 3};
  const int64_t first_cell = segment.begin / kWidth;
  const int64_t last_cell = (segment.end - 1) / kWidth;
  const int rounds = merge_rounds(segment, kWidth);
  CHECK((int64_t{1} << rounds) > last_cell - first_cell);
  CHECK((int64_t{1} << (rounds - 1)) <= last_cell - first_cell);
  for (const int64_t cell : {first_cell, first_cell + 1, (first_cell + last_cell) / 2, last_cell}) {
    for (int round = 0; round < rounds; ++round) {
      const MergePair<int64_t> pair = merge_pair(segment, kWidth, cell, round);
      CHECK(segment.begin <= pair.begin && pair.begin <= pair.middle && pair.middle <= pair.end);
      CHECK(pair.end <= segment.end && pair.begin <= std::max(segment.begin, cell * kWidth));
      CHECK(pair.end - pair.begin <= kWidth << (round + 1));
    }
    const MergePair<int64_t> last = merge_pair(segment, kWidth, cell, rounds - 1);
    CHECK(last.begin == segment.begin && last.end == segment.end);
    const MergeGroup<int64_t> group = merge_group(segment, first_cell, kWidth, cell, group_rounds(segment, kWidth) - 1);
    CHECK(group.begin() == segment.begin && group.end() == segment.end);
  }
}

TEST(work_of_many_outputs) {
  for (const int64_t drift : {-1, 0, 1}) {
    // With drift -1, offsets are positions of removed items, which differ. Other offsets may repeat.
    const int64_t repeat = drift < 0 ? 1 : 0;
    const std::vector<int64_t> offsets{0, 3, int64_t{1} << 31, int64_t{1} << 32, (int64_t{1} << 32) + repeat, kFar - 1};
    const auto objects = static_cast<int64_t>(offsets.size());
    WorkList work;
    work.objects = objects;
    work.drift = drift;
    work.capacity = kFar;
    work.size = kFar + drift * objects;
    work.offsets = {offsets.data(), true};
    WorkRow row = work.row(0);
    row.first = row.find_first(kFind);
    row.total = row.find_total(work.size, kFind);
    CHECK(row.first == 0 && row.total == work.size);
    // Of objects with the same start, the last has the run.
    int64_t position = 0;
    for_each_run(row, {0, row.total}, [&](int64_t object, Range<int64_t> run) {
      CHECK(run.begin == position && run.end > run.begin);
      CHECK(object >= 0 && run.begin == row.start(object));
      position = run.end;
    });
    CHECK(position == row.total);
    for (const int64_t at : positions_up_to(row.total - 1)) {
      int64_t found = -2;
      for_each_run(row, {at, at + 1}, [&](int64_t object, Range<int64_t>) { found = object; });
      int64_t expected = -1;
      for (int64_t j = 0; j < objects; ++j) expected = row.start(j) <= at ? j : expected;
      CHECK(found == expected);
    }
  }
}

TEST(moves_of_many_rows_are_ordered_by_regions_as_far_as_32_bits_reach) {
  struct Gathers final : Attributes {
    int64_t operator[](std::string_view name) const override { return name == "gathers"; }
  } attributes;
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  for (const int64_t rows : {kMost - 1, kMost, kMost + 1, kMost + 2}) {
    for (const int64_t from : {int64_t{1000}, rows}) {
      const Array x{nullptr, DType::u8, {from, 1}};
      const Array into{nullptr, DType::u8, {rows, 1}};
      const Array intervals{nullptr, DType::s32, {int64_t{1} << 21}};
      const Array absent{nullptr, DType::s32, {0}};
      const Call call{"interval_move", {x, intervals, intervals, intervals, absent, into}, {into}, attributes};
      const IntervalMoveOperands operands = interval_move_operands(call);
      CHECK(operands.is_wide() == (rows > kMost));
      CHECK(operands.has_order() == (rows <= kMost));
    }
  }
}

TEST(sums_of_a_weighted_column_have_32_bit_positions) {
  const int32_t index = 0;
  RowSources sources{.width = 1, .count = kFar, .length = 0, .problems = 1, .indices = {&index}};
  Segments segments{.heads = {&index}, .heads_count = 1};
  for (const int64_t length : {int64_t{9}, int64_t{INT32_MAX}, int64_t{INT32_MAX} + 1, kFar}) {
    sources.length = segments.length = length;
    CHECK(is_weighted_column(sources, segments) == (length <= INT32_MAX));
  }
  segments.length = 9;
  segments.heads_count = INT32_MAX;
  CHECK(!is_weighted_column(sources, segments));
}

TEST(indices_of_any_value_add_up) {
  using Limits = std::numeric_limits<int64_t>;
  const std::vector<int64_t> extremes{Limits::min(), Limits::min() + 1, -kFar, -1, 0, kFar, Limits::max()};
  const IndexVector vector{extremes.data(), true};
  for (int64_t i = 0; i < static_cast<int64_t>(extremes.size()); ++i) {
    CHECK((vector[i] < 0) == (extremes[i] < 0));
    if (std::abs(extremes[i] / 2) < kFar) CHECK(vector[i] == extremes[i]);
    if (std::abs(extremes[i] / 2) > kFar) CHECK(std::abs(vector[i]) > int64_t{1} << 59);
    for (int64_t j = 0; j < static_cast<int64_t>(extremes.size()); ++j) {
      CHECK(vector[i] + vector[j] - (vector[j] + kFar) == vector[i] - kFar);  // no sum overflows
    }
  }
}

}  // namespace mgpu::testing
