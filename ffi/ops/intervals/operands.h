// interval_scatter is an interval_move without `gathers`.
#pragma once

#include "ops/load_balance/operands.h"
#include "ops/move_rows/rows.h"

namespace mgpu {

// Without starts (`at.data` is null), an output's row is its own position.
struct Starts {
  IndexVector at;
  int64_t stride = 0;

  MGPU_HOST_DEVICE int64_t target(const WorkRow& row, int64_t problem, int64_t j, int64_t position) const {
    return at.data ? at[problem * stride + j] + (position - row.start(j)) : position;
  }
};

// Operands: values [.., objects, elements]; offsets [.., objects], the first output of each object; total [.., 1], the
// end of the last object's outputs, or absent; fill_value [.., 1]. Result: [.., size, elements].
struct IntervalExpandOperands {
  WorkList work;
  Rows values;
  Fill fill;
  Rows out;

  explicit IntervalExpandOperands(const Call& call);
  WorkTiles layout(Workspace& workspace) const;
};

// Intervals, sorted by the region of the result that they go to.
// Writes to parts of one 32-byte sector then meet in the cache.
struct RegionOrder {
  static constexpr int kRegions = 128;
  // Intervals in the low half, items in the high half.
  // One atomic addition adds to both.
  using Sum = unsigned long long;

  int shift;            // a region has `1 << shift` rows of the result
  Sum* sums = nullptr;  // [kRegions]
  Sum* ends = nullptr;  // [kRegions], where the next intervals and items of a region go
  int32_t* touched;     // how many regions the intervals of a block go to, summed over the blocks
  int32_t* is_used;     // whether kernels read `items` and the arrays below instead of the operands
  int64_t* items;
  int32_t* offsets;  // [objects], in the new order, as are both starts
  int32_t* gather_starts;
  int32_t* scatter_starts;

  // With may_have_units(): if each interval has one item, the items themselves are sorted by region.
  // A region has `1 << shift` places for them.
  unsigned* unit_counts = nullptr;  // [kRegions], the number of items placed so far
  int32_t* is_mixed = nullptr;      // whether this fails: other lengths, or too many items in a region
  void* unit_moves = nullptr;       // [regions << shift] of unit_move_bytes each

  MGPU_HOST_DEVICE bool is_done() const { return is_mixed && *is_mixed == 0; }
};

constexpr int64_t unit_move_bytes(int64_t row_bytes) { return row_bytes <= 4 ? 8 : 2 * row_bytes; }

// Output `position` of object j moves row `gather.target` of x to row `scatter.target` of the result.
struct IntervalMoveOperands {
  WorkList work;
  Rows x;
  Starts gather;
  Starts scatter;
  bool has_fill;     // whether rows without a source are filled
  const void* into;  // copied to the result first, or null
  Fill background;   // the element to fill the result with first; its address is null if there is none
  Fill fill;
  Rows out;
  bool scatters = false;
  // Whether rows are added to those of the result, in the order of the intervals.
  // Begins and ends of the intervals in the result must then not descend.
  bool adds = false;

  // Whether CUDA kernels compute row numbers in 64 bits.
  bool is_wide() const {
    constexpr int64_t kTooMany = int64_t{1} << 31;
    return work.offsets.wide || gather.at.wide || scatter.at.wide || maximum(work.size, x.count) >= kTooMany ||
           out.count >= kTooMany;
  }

  bool has_wide_starts() const {
    const auto is_wide = [](const Starts& starts) { return !starts.at.data || starts.at.wide; };
    return work.objects == 0 || (is_wide(gather) && is_wide(scatter));
  }

  // Whether there may be an order by regions: for scatters of short intervals into a large result.
  bool has_order() const {
    constexpr int64_t kMinBytes = int64_t{1} << 25;
    constexpr int64_t kMaxBytesPerInterval = 4096;
    const int64_t bytes = out.count * out.row_bytes;
    // For exactly kMinBytes, single items are moved faster in input order.
    const bool is_larger = has_as_many() ? bytes > kMinBytes : bytes >= kMinBytes;
    return scatters && work.problems == 1 && !is_wide() && !is_wide_row(out.row_bytes) && is_larger &&
           work.objects < int64_t{1} << 30 && bytes <= work.objects * kMaxBytesPerInterval;
  }

  // Whether there are as many intervals as outputs, so that each may have one.
  bool has_as_many() const { return work.objects == work.size; }

  bool may_have_units() const { return has_order() && has_as_many() && out.count <= 2 * work.size; }

  // 1 or 2 if all intervals may have that length and there are kernels for it, otherwise 0.
  int64_t unit_length() const {
    if (work.problems != 1 || work.objects == 0 || is_wide() || is_wide_row(out.row_bytes)) return 0;
    const int64_t length = work.size % work.objects == 0 ? work.size / work.objects : 0;
    return length <= 2 ? length : 0;
  }

  bool is_large() const {
    constexpr int64_t kMaxItems = int64_t{1} << 22;
    constexpr int64_t kMaxBytes = int64_t{1} << 25;
    return work.size > kMaxItems || maximum(x.count, out.count) * out.row_bytes > kMaxBytes;
  }

  // Whether to try the kernels for intervals of unit_length() items.
  // In a large scatter, the trial costs too much if lengths differ.
  bool has_likely_units() const {
    constexpr int64_t kMaxScattered = int64_t{1} << 21;
    return unit_length() > 0 && (!scatters || (work.size <= kMaxScattered && !is_large())) && !has_order();
  }

  // The number of sweeps over the outputs
  // in a large gather with likely units.
  // A sweep gathers from one part of x.
  int64_t sweeps() const {
    constexpr int64_t kPart = int64_t{1} << 25;
    constexpr int64_t kMaxSweeps = 3;
    if (2 * work.size < x.count) return 1;
    const int64_t parts = maximum<int64_t>(ceil_div(x.count * x.row_bytes, kPart), 1);
    return parts <= (x.row_bytes <= 4 ? 8 : 4) ? minimum(parts, kMaxSweeps) : 1;
  }

  // In a large gather with likely units: flags of the tiles that are left to gather_mixed_tiles.
  static constexpr int64_t kUnitTile = 1024;  // outputs
  uint8_t* take_mixed_tiles(Workspace& workspace) const;

  RegionOrder take_order(Workspace& workspace) const;

  WorkTiles layout(Workspace& workspace) const;
};

// `Indices` is an IndexVector or an IndicesOf.
template <typename Indices>
struct AddedIntervals {
  Indices offsets, sources, targets;
  bool gathers;
  int64_t count;
  int64_t live;

  MGPU_HOST_DEVICE AddedIntervals(const IntervalMoveOperands& operands, int64_t problem)
      : offsets(operands.work.offsets_of(problem)),
        sources(operands.gather.at.from(problem * operands.gather.stride)),
        targets(operands.scatter.at.from(problem * operands.scatter.stride)),
        gathers(operands.gather.at.data),
        count(operands.work.objects),
        live(operands.work.live(problem)) {}

  // Some rows may lie outside of the result.
  MGPU_HOST_DEVICE Range<int64_t> rows(int64_t j) const {
    const int64_t begin = offsets[j], target = targets[j];
    const int64_t end = minimum<int64_t>(j + 1 < count ? offsets[j + 1] : live, live);
    return {target, target + (begin < 0 ? 0 : maximum(end - begin, int64_t{0}))};
  }
  MGPU_HOST_DEVICE int64_t source(int64_t j) const { return gathers ? sources[j] : offsets[j]; }
};

// Operands: x [.., n, elements]; starts [.., objects]; offsets [.., objects]; total [.., 1] or absent; fill_value [..,
// 1]. Result: [.., size, elements].
IntervalMoveOperands interval_gather_operands(const Call& call);

// Operands: x [.., n, elements]; gather_starts [.., objects], read only with `gathers`; scatter_starts [.., objects];
// offsets [.., objects]; total [.., 1] or absent; into [.., k, elements] or, if all its elements are equal, one element
// [1]. Attributes: gathers, whether gather_starts says where rows come from; adds, whether rows are added to the rows
// of `into`. Result: [.., k, elements].
IntervalMoveOperands interval_move_operands(const Call& call);

}  // namespace mgpu
