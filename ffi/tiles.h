// The edges at which kernels go from one tile to the next, for tests: of both platforms, all widths, and devices of any
// size.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace mgpu {

// By what is cut: the sizes of its tiles, and in `sort_items` and `sort_cells` of what a thread or a block sorts first.
using TileSizes = std::map<std::string, std::set<int64_t>>;
TileSizes tile_sizes();

}  // namespace mgpu
