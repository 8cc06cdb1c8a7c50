// The kernels of a sort by a compiled function. They are the kernels of the sort of segments, which only compare pairs
// of keys.
#pragma once

#include "function/order.h"
#include "ops/segmented_sort/merge_tiles.cuh"
#include "ops/segmented_sort/plan_tiles.cuh"
#include "ops/segmented_sort/sort_tiles.cuh"
