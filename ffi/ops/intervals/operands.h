// interval_scatter is an interval_move whose sources are the outputs' own positions.
#pragma once

#include "ops/load_balance/operands.h"
#include "ops/move_rows/rows.h"

namespace mgpu {

// If `at` is null, output i has row i.
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

// Intervals in the order of the regions of the result that they go to. Short intervals write parts of a 32-byte sector.
// In this order, the parts meet in the cache, so that no sector has to be read from memory to be completed.
struct RegionOrder {
  static constexpr int kRegions = 128;
  // A region's number of intervals in the low half, and its number of items in the high half, so that one atomic
  // addition counts both.
  using Sum = unsigned long long;

  int shift;            // a target's region is target >> shift
  Sum* sums = nullptr;  // [kRegions], of all intervals
  Sum* ends = nullptr;  // [kRegions], where the next interval of each region goes
  int32_t* touched;     // how many regions the intervals of a block go to, summed over the blocks
  int32_t* is_used;     // whether `touched` is so large that the order below is worth making
  int64_t* items;
  int32_t* offsets;  // [objects], in the new order, as are both starts
  int32_t* gather_starts;
  int32_t* scatter_starts;

  // If there are as many intervals as items, each may have one item. Then the items themselves are put in the order of
  // the regions. A region has `1 << shift` places, which are enough unless intervals overlap.
  unsigned* unit_counts = nullptr;  // [kRegions], the number of items placed so far
  int32_t* is_mixed = nullptr;      // whether some interval has no item or several, or a region would get too many
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
  bool has_fill;     // whether rows without a source are filled; if not, the result keeps what it has there
  const void* into;  // copied to the result first, or null
  Fill background;   // the element to fill the result with first; its address is null if there is none
  Fill fill;
  Rows out;
  bool scatters = false;
  // Whether rows are added to the result, in the order of the intervals. The caller then passes intervals whose
  // begins and ends ascend in the result, so the intervals that contain a row are consecutive.
  bool adds = false;

  // Whether sums of starts, offsets and positions need 64 bits to distinguish rows.
  bool is_wide() const {
    constexpr int64_t kTooMany = int64_t{1} << 31;
    return work.offsets.wide || gather.at.wide || scatter.at.wide || maximum(work.size, x.count) >= kTooMany ||
           out.count >= kTooMany;
  }

  bool has_wide_starts() const {
    const auto is_wide = [](const Starts& starts) { return !starts.at.data || starts.at.wide; };
    return work.objects == 0 || (is_wide(gather) && is_wide(scatter));
  }

  // Whether intervals are put in the order of regions, which pays if they are short and the result is large.
  bool has_order() const {
    constexpr int64_t kMinBytes = int64_t{1} << 25;
    constexpr int64_t kMaxBytesPerInterval = 4096;
    const int64_t bytes = out.count * out.row_bytes;
    // For a result of exactly kMinBytes, single items are moved faster in input order than by regions.
    const bool is_larger = has_as_many() ? bytes > kMinBytes : bytes >= kMinBytes;
    return scatters && work.problems == 1 && !is_wide() && !is_wide_row(out.row_bytes) && is_larger &&
           work.objects < int64_t{1} << 30 && bytes <= work.objects * kMaxBytesPerInterval;
  }

  // Whether there are as many intervals as items: then each may have one.
  bool has_as_many() const { return work.objects == work.size; }

  bool may_have_units() const { return has_order() && has_as_many() && out.count <= 2 * work.size; }

  // The length that each interval has if all are equally long; 0 if they cannot be, or there are no kernels for it.
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

  // Whether to run the kernels for intervals of unit_length() items each, which the shapes must allow. With other
  // lengths, a scatter of 2^22 items would take 45% longer than by the kernels for any length; hence kMaxScattered.
  bool has_likely_units() const {
    constexpr int64_t kMaxScattered = int64_t{1} << 21;
    return unit_length() > 0 && (!scatters || (work.size <= kMaxScattered && !is_large())) && !has_order();
  }

  // The number of sweeps over the outputs in a gather with likely units and large arrays. Each sweep takes the items in
  // one part of x, so more of its reads hit the L2 cache. Three sweeps take a third less time than one (2^24 words of 4
  // bytes, H200). With few outputs, no part is read often.
  int64_t sweeps() const {
    constexpr int64_t kPart = int64_t{1} << 25;
    constexpr int64_t kMaxSweeps = 3;
    if (2 * work.size < x.count) return 1;
    const int64_t parts = maximum<int64_t>(ceil_div(x.count * x.row_bytes, kPart), 1);
    return parts <= (x.row_bytes <= 4 ? 8 : 4) ? minimum(parts, kMaxSweeps) : 1;
  }

  // In a large gather with likely units, each tile has a flag: whether some interval's length is not unit_length().
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
