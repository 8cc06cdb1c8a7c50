#include "tiles.h"

#include "cpu/tunings.h"
#include "cuda/tunings.h"
#include "operands/reduce.h"

namespace mgpu {

TileSizes tile_sizes() {
  TileSizes sizes;
  sizes["load_balance"] = {cpu::kLoadBalanceTile};
  for (bool wide_rows : {false, true}) sizes["load_balance"].insert(kWorkThreads * work_items(wide_rows));
  sizes["reduce"] = {cpu::kReduceTile, kReduceShortRow};
  sizes["run_heads"] = {cpu::kRunHeadsTile};
  sizes["segmented_reduce"] = {cpu::kReduceTile};
  sizes["segmented_softmax"] = {softmax_shape(4).tile(), softmax_shape(8).tile()};
  sizes["reduce_rows"] = {cpu::kReduceRowsTile};
  sizes["scan"] = {cpu::kScanTile};
  sizes["count_bins"] = {cpu::kCountBinsPart, kCountPart};
  sizes["join"] = {cpu::kJoinTile};
  sizes["order_statistics"] = {cpu::kOrderStatisticsPart, kRankPart};
  sizes["select"] = {cpu::kSelectTile, kSelectTile};
  sizes["sets"] = {cpu::kSetTile};
  sizes["top_k"] = {cpu::kTopKPart};
  sizes["merge"] = sizes["sorted_match"] = sizes["sorted_search"] = {cpu::kMergeTile};
  sizes["segmented_sort"] = {cpu::kSortTile};
  sizes["sort_cells"] = {kOneCellShape.cell(), kFewItemsShape.cell()};
  for (int width : {1, 2, 4, 8}) {
    for (int payload_width : {0, 4, 8}) sizes["sort_digits"].insert(digit_shape(width, payload_width).tile());
    sizes["reduce"].insert(kReduceChunkBytes / width);
    sizes["run_heads"].insert(run_heads_shape(width).tile());
    sizes["scan"].insert(kScanTileBytes / width);
    for (int state_width : {4, 8, 16}) sizes["scan"].insert(scan_segments_shape(state_width, width).tile());
    sizes["join"].insert(join_tile_shape(width).tile());
    sizes["sets"].insert(set_tile(width));
    sizes["top_k"].insert(top_k_shape(width).tile());
    sizes["sort_items"].insert(tile_shape(width).items);
    sizes["segmented_sort"].insert(tile_items(width));
    for (bool large : {false, true}) {
      for (int payload_width : {0, 4, 8}) sizes["merge"].insert(merge_shape(width, payload_width, large).tile());
      sizes["sorted_search"].insert(search_shape(width, false, large).tile());
      sizes["sorted_match"].insert(search_shape(width, true, large).tile());
    }
    for (bool has_payload : {false, true}) {
      for (const RowShape& shape : {row_shape(width, has_payload), pairs_shape(width, has_payload)}) {
        sizes["sort_cells"].insert(shape.cell());
        sizes["sort_rows"].insert(shape.tile());
      }
    }
  }
  for (int state_width : {4, 8, 16}) {
    sizes["segmented_reduce"].insert(SegmentTiling::tile_units(state_width));
  }
  return sizes;
}

}  // namespace mgpu
