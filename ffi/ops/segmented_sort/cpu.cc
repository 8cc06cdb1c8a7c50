// Tiles on a fixed grid are sorted segment by segment, then runs of tiles are merged within each segment. A segment
// that would take two rounds of merging or more is first cut into buckets, which become separate segments.
#include <algorithm>
#include <vector>

#include "algorithm/merge_path.h"
#include "algorithm/segments.h"
#include "algorithm/serial_merge.h"
#include "cpu/entries.h"
#include "cpu/policy.h"
#include "ops/common/dispatch.h"
#include "ops/segmented_sort/operands.h"
#include "ops/segmented_sort/rank_buckets.h"
#include "runtime/operations.h"

namespace mgpu::cpu {

namespace {

template <typename Order, typename Payload>
struct SortProblem {
  Segments segments;
  EntryBuffer<Order, Payload> input;
  EntryBuffer<Order, Payload> output;
};

// Large tiles take fewer merge rounds, but each thread should have several tiles to sort.
int64_t tile_width(int64_t total, int threads) {
  int64_t width = kSortTile;
  while (width < 1 << 19 && 4 * width * threads <= total) width *= 2;
  return width;
}

struct TileHeads {
  bool at_start = false;  // the tile's first position is a head
  int64_t inner = -1;     // the first head after the tile's first position, or -1
  int64_t last = -1;      // the last head, or -1
};

// The tiles and their segments, independent of types.
class SortTiles {
 protected:
  SortTiles(const Segments& segments, int threads)
      : segments_(segments),
        total_(segments.total()),
        width_(tile_width(total_, threads)),
        tiles_(ceil_div(total_, width_)) {}

  Range<int64_t> tile_range(int64_t tile) const { return {tile * width_, std::min(total_, (tile + 1) * width_)}; }

  int max_rounds(const std::vector<Range<int64_t>>& crossing) const {
    int rounds = 0;
    for (const auto& segment : crossing) rounds = std::max(rounds, merge_rounds(segment, width_));
    return rounds;
  }

  // Sets the flag of each item of the tile that begins a segment, and one more flag, after that of the last item.
  [[gnu::noinline]] void flag_heads(int64_t tile, uint8_t* is_head) const {
    const Range<int64_t> range = tile_range(tile);
    std::fill_n(is_head, range.size(), uint8_t{0});
    mark_heads(tile, [&](int64_t position) { is_head[position - range.begin] = 1; });
    is_head[range.size()] = 1;
  }

  [[gnu::noinline]] std::vector<Range<int64_t>> crossing_segments(Executor& executor) const {
    std::vector<TileHeads> heads(tiles_);
    parallel_for(executor, tiles_, [&](int64_t tile) {
      mark_heads(tile, [&](int64_t position) {
        TileHeads& found = heads[tile];
        found.last = std::max(found.last, position);
        if (position == tile * width_) {
          found.at_start = true;
        } else {
          found.inner = found.inner < 0 ? position : std::min(found.inner, position);
        }
      });
    });
    std::vector<Range<int64_t>> crossing(tiles_);
    for (int64_t tile = 0, last = 0; tile < tiles_; ++tile) {
      crossing[tile].begin = heads[tile].at_start ? tile * width_ : last;
      last = std::max(last, heads[tile].last);
    }
    for (int64_t tile = tiles_ - 1, next = total_; tile >= 0; --tile) {
      if (heads[tile].inner >= 0) next = heads[tile].inner;
      crossing[tile].end = next;
      if (heads[tile].at_start) next = tile * width_;
    }
    return crossing;
  }

  Range<int64_t> segment_at(int64_t begin, int64_t end, int64_t tile,
                            const std::vector<Range<int64_t>>& crossing) const {
    if (begin == tile * width_) return crossing[tile];
    if (end == (tile + 1) * width_ && tile + 1 < tiles_ && crossing[tile + 1].begin == begin) return crossing[tile + 1];
    return {begin, end};
  }

  const Segments& segments_;
  int64_t total_;
  int64_t width_;
  int64_t tiles_;
  std::vector<int64_t> bucket_heads_;  // ascending: where buckets of segments start

 private:
  template <typename Mark>
  void mark_heads(int64_t tile, Mark mark) const {
    const auto find = [](auto begin, auto end, auto before) { return partition_point(begin, end, before); };
    const Range<int64_t> range = tile_range(tile);
    Range<int64_t> listed{0, 0};
    if (!segments_.has_flags())
      listed = {segments_.listed_from(range.begin, find), segments_.listed_from(range.end, find)};
    segments_.mark_heads(range, listed, 0, 1, mark);
    auto head = std::lower_bound(bucket_heads_.begin(), bucket_heads_.end(), range.begin);
    for (; head != bucket_heads_.end() && *head < range.end; ++head) mark(*head);
  }
};

template <typename Order, typename Payload>
class SegmentedSort : SortTiles {
  using Buffer = EntryBuffer<Order, Payload>;
  using Item = typename Buffer::Item;
  // A sorting network may exchange equal items only if they have the same bits.
  static constexpr bool kPlainCodes = Order::kTotal && std::is_same_v<Payload, NoPayload>;

 public:
  SegmentedSort(const SortProblem<Order, Payload>& problem, int threads)
      : SortTiles(problem.segments, threads),
        less_{problem.input.order},
        input_(problem.input),
        output_(problem.output) {}

  void run(Executor& executor) {
    std::vector<Range<int64_t>> crossing = crossing_segments(executor);
    const TemporaryBuffer<Order, Payload> temporary(max_rounds(crossing) > 0 ? total_ : 0, input_.order);
    // A segment that takes r rounds starts in buffers[r % 2] and alternates, so it ends in the output without a copy.
    const Buffer buffers[2] = {output_, temporary.buffer()};
    if (max_rounds(crossing) > 1) {
      deal_long_segments(executor, crossing, buffers[1]);
      crossing = crossing_segments(executor);
    }
    const int rounds = max_rounds(crossing);
    parallel_for(executor, tiles_, [&](int64_t tile) { sort_tile(tile, crossing, buffers); });
    for (int round = 0; round < rounds; ++round) {
      const std::vector<int64_t> splits = split_runs(executor, round, crossing, buffers);
      parallel_for(executor, tiles_, [&](int64_t tile) { merge_tile(tile, round, crossing, splits, buffers); });
    }
  }

 private:
  // Distributes each segment that would take two rounds or more to buckets in `to`, which are then separate segments.
  void deal_long_segments(Executor& executor, const std::vector<Range<int64_t>>& crossing, const Buffer& to) {
    for (const auto& segment : crossing) {
      const bool again = !dealt_.empty() && dealt_.back().begin == segment.begin;
      if (again || merge_rounds(segment, width_) < 2) continue;
      RankBuckets<Order, Payload>(input_, segment).deal(executor, to, bucket_heads_);
      dealt_.push_back(segment);
    }
  }

  void load_tile(Range<int64_t> range, const Buffer& dealt, Item* items) const {
    const auto load = [&](const Buffer& from, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) items[i - range.begin] = from.load(i);
    };
    auto segment = std::partition_point(dealt_.begin(), dealt_.end(),
                                        [&](const Range<int64_t>& segment) { return segment.end <= range.begin; });
    int64_t at = range.begin;
    for (; segment != dealt_.end() && segment->begin < range.end; ++segment) {
      const int64_t begin = std::max(at, segment->begin);
      load(input_, at, begin);
      at = std::min(range.end, segment->end);
      load(dealt, begin, at);
    }
    load(input_, at, range.end);
  }

  void sort_tile(int64_t tile, const std::vector<Range<int64_t>>& crossing, const Buffer (&buffers)[2]) const {
    const Range<int64_t> range = tile_range(tile);
    const ThreadScratch<Item, uint8_t> scratch(2 * width_, width_ + 1);
    Item* const items = scratch.first();
    uint8_t* const is_head = scratch.second();
    flag_heads(tile, is_head);
    load_tile(range, buffers[1], items);
    for (int64_t begin = 0, end; begin < range.size(); begin = end) {
      end = begin + 1;
      while (!is_head[end]) ++end;
      if (end == begin + 1 && begin > 0 && end < range.size()) {  // a segment of one item, which is in place
        output_.store(range.begin + begin, items[begin]);
        continue;
      }
      sort_entries<kPlainCodes>(items + begin, items + width_ + begin, end - begin, less_.order);
      const Range<int64_t> segment = segment_at(range.begin + begin, range.begin + end, tile, crossing);
      const Buffer& target = buffers[merge_rounds(segment, width_) % 2];
      for (int64_t i = begin; i < end; ++i) target.store(range.begin + i, items[i]);
    }
  }

  // For each tile, the number of items of its pair's first run that come before the tile in this round's output.
  std::vector<int64_t> split_runs(Executor& executor, int round, const std::vector<Range<int64_t>>& crossing,
                                  const Buffer (&buffers)[2]) const {
    std::vector<int64_t> splits(tiles_);
    parallel_for(executor, tiles_, [&](int64_t tile) {
      if (round >= merge_rounds(crossing[tile], width_)) return;
      const MergePair<int64_t> pair = merge_pair(crossing[tile], width_, tile, round);
      if (tile * width_ <= pair.begin || tile * width_ >= pair.end) return;
      const Buffer& source = this->source(crossing[tile], round, buffers);
      splits[tile] = merge_path(
          pair.middle - pair.begin, pair.end - pair.middle, tile * width_ - pair.begin,
          [&](int64_t i) { return source.load(pair.begin + i); },
          [&](int64_t i) { return source.load(pair.middle + i); }, less_);
    });
    return splits;
  }

  const Buffer& source(Range<int64_t> segment, int round, const Buffer (&buffers)[2]) const {
    return buffers[(merge_rounds(segment, width_) - round) % 2];
  }

  // A tile may have parts of two segments: one that began to the left, and one that continues to the right.
  void merge_tile(int64_t tile, int round, const std::vector<Range<int64_t>>& crossing,
                  const std::vector<int64_t>& splits, const Buffer (&buffers)[2]) const {
    const Range<int64_t> range = tile_range(tile);
    merge_piece(tile, round, crossing[tile], range, splits, buffers);
    if (tile + 1 < tiles_ && crossing[tile + 1].begin < range.end && crossing[tile + 1].begin > range.begin) {
      merge_piece(tile, round, crossing[tile + 1], range, splits, buffers);
    }
  }

  void merge_piece(int64_t tile, int round, Range<int64_t> segment, Range<int64_t> range,
                   const std::vector<int64_t>& splits, const Buffer (&buffers)[2]) const {
    if (round >= merge_rounds(segment, width_)) return;
    const Buffer& source = this->source(segment, round, buffers);
    const Buffer& target = this->source(segment, round + 1, buffers);
    const MergePair<int64_t> pair = merge_pair(segment, width_, tile, round);
    const int64_t begin = std::max(range.begin, pair.begin);
    const int64_t end = std::min(range.end, pair.end);
    const int64_t a_begin = begin > pair.begin ? splits[tile] : 0;
    const int64_t a_end = end < pair.end ? splits[tile + 1] : pair.middle - pair.begin;
    const int64_t b_begin = begin - pair.begin - a_begin;
    const int64_t b_end = end - pair.begin - a_end;
    const int64_t a_first = pair.begin + a_begin;
    const int64_t b_first = pair.middle + b_begin;
    const auto copy = [&](int64_t from, int64_t to, int64_t count) {
      for (int64_t i = 0; i < count; ++i) target.store(to + i, source.load(from + i));
    };
    walk_merge(
        a_end - a_begin, b_end - b_begin, [&](int64_t i) { return source.load(a_first + i); },
        [&](int64_t j) { return source.load(b_first + j); }, less_,
        [&](int64_t i, int64_t j, int64_t take_b) {
          target.store(begin + i + j, source.load(mgpu::select(take_b, a_first + i, b_first + j)));
        },
        [&](int64_t i, int64_t last, int64_t j) { copy(a_first + i, begin + i + j, last - i); },
        [&](int64_t j, int64_t last, int64_t i) { copy(b_first + j, begin + i + j, last - j); });
  }

  EntryLess<Order> less_;
  Buffer input_;
  Buffer output_;
  std::vector<Range<int64_t>> dealt_;  // ascending: segments whose items are in the temporary buffer, by buckets
};

}  // namespace

void segmented_sort(const Call& call, Executor& executor) {
  const SegmentedSortOperands operands(call);
  if (operands.segments.total() == 0) return;
  dispatch_order(call, operands.key_type, operands.descending, [&]<typename Order>(Order order) {
    dispatch_payload(call, operands.payload_width, [&]<typename Payload>(Payload) {
      const SortProblem<Order, Payload> problem{
          operands.segments,
          {order, operands.keys, operands.payload, operands.index_row_length()},
          {order, operands.sorted_keys, operands.sorted_payload},
      };
      SegmentedSort<Order, Payload>(problem, executor.concurrency()).run(executor);
    });
  });
}

}  // namespace mgpu::cpu
