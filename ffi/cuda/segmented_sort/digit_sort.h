// The sort by digits, whose kernels are a file of their own.
#pragma once

#include <cuda_runtime.h>

#include "cuda/segmented_sort/problem.cuh"
#include "cuda/shapes.h"

namespace mgpu::cuda::sorting {

// Segments of so many items are left to this where the others are merged. INT64_MAX if none are, or the device has too
// little shared memory.
int64_t least_long_segment(const Call& call, const SegmentedSortOperands& operands);

// Launches all of it, which does nothing where `disorder` says that rows are to be merged. False if the device has too
// little shared memory.
bool sort_by_digits(const Call& call, const SegmentedSortOperands& operands,
                    const SegmentedSortOperands::Scratch& scratch, const Disorder& disorder, cudaStream_t stream);

// Launches the sort of whole rows that fit into a block. False if the device has too little shared memory.
bool sort_rows_by_digits(const Call& call, const SegmentedSortOperands& operands, cudaStream_t stream);

void list_digit_shapes(const Call& call, KernelShapeList& list);
void list_row_digit_shapes(const Call& call, KernelShapeList& list);

}  // namespace mgpu::cuda::sorting
