// The operations with kernels. Each of MGPU_OPERATIONS has a CPU function, a CUDA function, the size of its CUDA
// workspace, and a signature. The libraries make an FFI handler of each function, with the operation's name.
#pragma once

#include "runtime/call.h"
#include "runtime/executor.h"

// clang-format off
#define MGPU_OPERATIONS(OPERATION) \
  OPERATION(bucket_join)           \
  OPERATION(bulk_insert)           \
  OPERATION(bulk_remove)           \
  OPERATION(count_bins)            \
  OPERATION(gathered_rows)         \
  OPERATION(group_search)          \
  OPERATION(interval_expand)       \
  OPERATION(interval_gather)       \
  OPERATION(interval_move)         \
  OPERATION(interval_reduce)       \
  OPERATION(join)                  \
  OPERATION(load_balance_search)   \
  OPERATION(merge)                 \
  OPERATION(order_statistics)      \
  OPERATION(reduce)                \
  OPERATION(reduce_by_id)          \
  OPERATION(reduce_rows)           \
  OPERATION(run_heads)             \
  OPERATION(scan)                  \
  OPERATION(segmented_order_statistics) \
  OPERATION(segmented_reduce)      \
  OPERATION(segmented_search)      \
  OPERATION(segmented_shift)       \
  OPERATION(segmented_sort)        \
  OPERATION(segmented_top_k)       \
  OPERATION(select)                \
  OPERATION(sets)                  \
  OPERATION(sorted_match)          \
  OPERATION(sorted_search)         \
  OPERATION(top_k)                 \
  // one line each, in alphabetical order
// clang-format on

// Operations that have a kernel only on CUDA.
// clang-format off
#define MGPU_CUDA_OPERATIONS(OPERATION) \
  OPERATION(hash_groups)                \
  OPERATION(sample_top_p)               \
  OPERATION(scan_rows)                  \
  OPERATION(segmented_softmax)          \
  OPERATION(top_k_candidates)           \
  // one line each, in alphabetical order
// clang-format on

// Operations by a caller's function, which NVRTC compiles when a program is loaded. On the CPU, plain JAX runs them.
// clang-format off
#define MGPU_FUNCTION_OPERATIONS(OPERATION) \
  OPERATION(reduce_by_function)             \
  OPERATION(scan_by_function)               \
  OPERATION(segmented_reduce_by_function)   \
  OPERATION(sort_by_function)               \
  OPERATION(sort_indices_by_function)       \
  // one line each, in alphabetical order
// clang-format on

struct CUstream_st;

namespace mgpu {

struct Signature;

#define MGPU_DECLARE(name)                                       \
  namespace cuda {                                               \
  void name(const Call& call, CUstream_st* stream);              \
  }                                                              \
  namespace workspace {                                          \
  int64_t name(const Call& call); /* bytes, whatever the data */ \
  }                                                              \
  namespace signature {                                          \
  extern const Signature name;                                   \
  }
MGPU_OPERATIONS(MGPU_DECLARE)
MGPU_CUDA_OPERATIONS(MGPU_DECLARE)
#undef MGPU_DECLARE

namespace cpu {
#define MGPU_DECLARE(name) void name(const Call& call, Executor& executor);
MGPU_OPERATIONS(MGPU_DECLARE)
#undef MGPU_DECLARE
}  // namespace cpu

// prepare_##name prepares the kernels of a function on all devices, from the attributes, without shapes.
#define MGPU_DECLARE(name)                                                         \
  namespace cuda {                                                                 \
  void prepare_##name(const Attributes& attributes, const FunctionData& function); \
  void name(const Call& call, CUstream_st* stream);                                \
  }                                                                                \
  namespace workspace {                                                            \
  int64_t name(const Call& call);                                                  \
  }
MGPU_FUNCTION_OPERATIONS(MGPU_DECLARE)
#undef MGPU_DECLARE

}  // namespace mgpu
