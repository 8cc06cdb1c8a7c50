// The sizes of the CPU's tiles, or parts: the work of one task.
#pragma once

#include <cstdint>

namespace mgpu::cpu {

constexpr int64_t kCountBinsPart = 1 << 16;
constexpr int64_t kGroupSearchPart = 1 << 16;  // about the fewest rows of both sides in a part
constexpr int64_t kGroupSearchParts = 256;     // the most parts, as each has a table of all groups
constexpr int64_t kJoinTile = 1 << 14;         // items of both inputs in a search; rows of the output in a task
constexpr int64_t kLoadBalanceTile = 1 << 14;
// Slots of a merge.
constexpr int64_t kMergeTile = 1 << 16;
constexpr int64_t kOrderStatisticsPart = 1 << 16;
constexpr int64_t kReduceTile = 1 << 15;  // items of a reduction; items and ends of a segmented reduction
// A tile of reduce_rows: the number of its rows and ends, times the number of its columns; the most columns; and the
// fewest rows and ends.
constexpr int64_t kReduceRowsTile = 1 << 17;
constexpr int64_t kReduceRowsColumns = 1 << 10;
constexpr int64_t kReduceRowsLeastUnits = 1 << 6;
constexpr int64_t kIdMinPartRows = 1 << 13;  // the fewest rows of a part, which has states of all ids
constexpr int64_t kIdMaxParts = 256;
constexpr int64_t kRunHeadsTile = 1 << 15;
constexpr int64_t kScanTile = 1 << 14;
constexpr int64_t kSelectTile = 1 << 14;
constexpr int64_t kSetTile = 1 << 14;  // items of both inputs
constexpr int64_t kSortTile = 1 << 14;
constexpr int64_t kTopKPart = 1 << 16;  // items of a part, if several tasks share a row

}  // namespace mgpu::cpu
