// Two sorted operands A and B, row by row, and the tiles of their merge.
#pragma once

#include "algorithm/index_vector.h"
#include "algorithm/merge_path.h"
#include "algorithm/segments.h"

namespace mgpu {

// Only the first live(row) keys of a row take part.
struct SortedRows {
  const void* keys = nullptr;
  int64_t length = 0;
  int64_t stride = 0;  // from row to row: length, or 0 if all rows share the keys
  int64_t stored = 0;  // keys in memory, over all rows
  LiveCounts counts;

  MGPU_HOST_DEVICE int64_t live(int64_t row) const { return counts(row, length); }
};

// A row of the merge has one slot for each item of A and of B: first for the live items in merged order, then for the
// dead items of A, then for those of B. Slots are numbered through all rows.
struct SortedPair {
  int64_t rows = 1;
  SortedRows a;
  SortedRows b;

  MGPU_HOST_DEVICE int64_t row_slots() const { return a.length + b.length; }
  MGPU_HOST_DEVICE int64_t slots() const { return rows * row_slots(); }
  SortedPair swapped() const { return {rows, b, a}; }
};

struct MergeTile {
  int64_t row;
  int64_t begin;  // the first slot, relative to its row
  int64_t size;
  int64_t a;  // live items of A in the row's earlier slots
  int64_t b;
  int64_t a_count;  // live items of A in the tile's slots
  int64_t b_count;
  bool b_follows;

  MGPU_HOST_DEVICE int64_t live() const { return a_count + b_count; }
  MGPU_HOST_DEVICE int64_t dead() const { return size - live(); }
};

// Unsorted keys give other tiles, but never one with items outside the operands.
template <typename Order>
struct MergeTiles {
  SortedPair pair;
  Order order;

  using Word = typename Order::Word;

  MGPU_HOST_DEVICE Word a_code(int64_t row, int64_t i) const {
    return order.encode(static_cast<const Word*>(pair.a.keys)[row * pair.a.stride + i]);
  }
  MGPU_HOST_DEVICE Word b_code(int64_t row, int64_t i) const {
    return order.encode(static_cast<const Word*>(pair.b.keys)[row * pair.b.stride + i]);
  }

  // The tile ends at `end`, with its row, or after `width` slots. Its items are not yet found.
  MGPU_HOST_DEVICE MergeTile slots_from(int64_t slot, int64_t end, int64_t width) const {
    const int64_t row = pair.rows == 1 ? 0 : slot / pair.row_slots();
    const int64_t begin = slot - row * pair.row_slots();
    return {row, begin, minimum(width, minimum(end - slot, pair.row_slots() - begin)), 0, 0, 0, 0, false};
  }

  // The number of live items of A before a slot of a row. It must lie in [low, high].
  template <typename Find>
  MGPU_HOST_DEVICE int64_t split(int64_t row, int64_t slot, int64_t low, int64_t high, Find find) const {
    const int64_t a_live = pair.a.live(row);
    const int64_t b_live = pair.b.live(row);
    const int64_t diagonal = minimum(slot, a_live + b_live);
    return merge_path_between(
        maximum(low, diagonal - b_live), minimum(minimum(high, diagonal), a_live), diagonal,
        [&](int64_t i) { return a_code(row, i); }, [&](int64_t i) { return b_code(row, i); },
        [&](Word x, Word y) { return order.less(x, y); }, find);
  }
  template <typename Find>
  MGPU_HOST_DEVICE int64_t split(int64_t row, int64_t slot, Find find) const {
    return split(row, slot, 0, slot, find);
  }

  // Like split without known bounds. It is fast if A and B have the same distribution of evenly spread keys.
  template <typename Find>
  MGPU_HOST_DEVICE int64_t likely_split(int64_t row, int64_t slot, Find find) const {
    const int64_t a_live = pair.a.live(row);
    const int64_t b_live = pair.b.live(row);
    const int64_t diagonal = minimum(slot, a_live + b_live);
    const int64_t begin = maximum<int64_t>(0, diagonal - b_live);
    const int64_t end = minimum(diagonal, a_live);
    const auto a = [&](int64_t i) { return a_code(row, i); };
    const auto b = [&](int64_t i) { return b_code(row, i); };
    int64_t guess = begin;
    float rise = 0;
    if (begin < end) {
      const auto rise_of = [](auto keys, int64_t count) {
        return static_cast<float>(static_cast<Word>(keys(count - 1) - keys(0))) / static_cast<float>(count);
      };
      const float share = static_cast<float>(diagonal) / static_cast<float>(a_live + b_live);
      guess = static_cast<int64_t>(share * static_cast<float>(a_live));
      rise = rise_of(a, a_live) + rise_of(b, b_live);
    }
    return merge_path_by_secants(
        begin, end, diagonal, guess, rise, a, b, [&](Word x, Word y) { return order.less(x, y); }, find);
  }

  MGPU_HOST_DEVICE void set_items(MergeTile& tile, int64_t a_begin, int64_t a_end) const {
    const int64_t a_live = pair.a.live(tile.row);
    const int64_t b_live = pair.b.live(tile.row);
    const int64_t begin = minimum(tile.begin, a_live + b_live);
    const int64_t end = minimum(tile.begin + tile.size, a_live + b_live);
    tile.a = a_begin;
    tile.b = begin - a_begin;
    // If keys are not sorted, searches in different ranges may contradict each other.
    tile.a_count = clamp(a_end, maximum(a_begin, end - b_live), minimum(a_begin + (end - begin), a_live)) - a_begin;
    tile.b_count = end - begin - tile.a_count;
    tile.b_follows = tile.b + tile.b_count < b_live;
  }

  MGPU_HOST_DEVICE Range<int64_t> a_dead(const MergeTile& tile) const {
    const int64_t first = tile.begin + tile.live() - pair.b.live(tile.row);
    return {minimum(first, pair.a.length), minimum(first + tile.dead(), pair.a.length)};
  }
  MGPU_HOST_DEVICE Range<int64_t> b_dead(const MergeTile& tile) const {
    const int64_t first = tile.begin + tile.live() - pair.a.length;
    const int64_t live = pair.b.live(tile.row);
    return {maximum(first, live), maximum(first + tile.dead(), live)};
  }
};

}  // namespace mgpu
