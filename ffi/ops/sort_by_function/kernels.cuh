// The kernels of a sort by a compiled function: those of sorts within segments, which ask an order for nothing but
// which of two keys comes first.
#pragma once

#include "function/order.h"
#include "ops/segmented_sort/merge_tiles.cuh"
#include "ops/segmented_sort/plan_tiles.cuh"
#include "ops/segmented_sort/sort_tiles.cuh"
