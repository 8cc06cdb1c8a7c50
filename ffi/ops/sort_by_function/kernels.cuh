// The kernels of a sort by a compiled function: those of sorts within segments, which need only know which of two keys
// comes first.
#pragma once

#include "function/order.h"
#include "ops/segmented_sort/merge_tiles.cuh"
#include "ops/segmented_sort/plan_tiles.cuh"
#include "ops/segmented_sort/sort_tiles.cuh"
