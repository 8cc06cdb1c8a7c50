// Launches of the radix sorts, whose kernels are compiled separately.
#pragma once

#include <cuda_runtime.h>

#include "cuda/launch/shapes.h"
#include "ops/segmented_sort/problem.cuh"

namespace mgpu::cuda::sorting {

// The kernels do nothing if `disorder` says that rows are to be merged.
void sort_by_digits(const Call& call, const SortPlan& plan, const SortScratch& scratch, const Disorder& disorder,
                    cudaStream_t stream);

void sort_rows_by_digits(const Call& call, const SortPlan& plan, cudaStream_t stream);

void list_digit_shapes(const Call& call, KernelShapeList& list);
void list_row_digit_shapes(const Call& call, KernelShapeList& list);

}  // namespace mgpu::cuda::sorting
