// The kernels of the sort of segments only compare pairs of keys, so they also sort by a compiled function.
#pragma once

#include "function/order.h"
#include "ops/segmented_sort/merge_tiles.cuh"
#include "ops/segmented_sort/plan_tiles.cuh"
#include "ops/segmented_sort/sort_tiles.cuh"
