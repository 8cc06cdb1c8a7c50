// The calls fail with a GPU and without one.
#include "check.h"
#include "cuda/launch/launch.h"

namespace mgpu::testing {

namespace {

struct None final : Attributes {
  int64_t operator[](std::string_view) const override { return 0; }
};

}  // namespace

TEST(a_failed_call_is_not_taken_for_one_of_the_next_launch) {
  const None none;
  const Call call{"test", {}, {}, none};
  bool is_internal = false;
  try {
    cuda::check(call, cudaSetDevice(-7));
  } catch (const CallError&) {
  } catch (const std::exception&) {
    is_internal = true;
  }
  CHECK(is_internal);
  cuda::check_launch(call);
}

TEST(a_gpu_without_memory_is_told_apart) {
  const None none;
  const Call call{"test", {}, {}, none};
  bool is_memory = false;
  try {
    cuda::check(call, cudaErrorMemoryAllocation);
  } catch (const std::bad_alloc&) {
    is_memory = true;
  }
  CHECK(is_memory);
}

}  // namespace mgpu::testing
