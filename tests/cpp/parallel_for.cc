#include <vector>

#include "check.h"
#include "executors.h"

namespace mgpu::testing {

TEST(parallel_for_runs_each_task_once) {
  ThreadPool pool(3);
  for (const int64_t count : {0, 1, 2, 3, 5, 1000}) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::vector<int> runs(count);  // not atomic: what a task writes is seen by the caller afterwards
      cpu::parallel_for(pool, count, [&](int64_t i) { ++runs[i]; });
      for (const int times : runs) CHECK(times == 1);
    }
  }
}

TEST(parallel_for_needs_no_helper) {
  LateExecutor late;
  {
    std::vector<int> runs(100);
    cpu::parallel_for(late, 100, [&](int64_t i) { ++runs[i]; });
    for (const int times : runs) CHECK(times == 1);
  }
  CHECK(late.tasks.size() == 3);
  for (const auto& task : late.tasks) task();  // the body is gone, and no task is left that would call it
}

TEST(parallel_for_called_by_several_threads) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      std::vector<int> runs(500);
      cpu::parallel_for(pool, 500, [&](int64_t i) { ++runs[i]; });
      for (const int times : runs) CHECK(times == 1);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace mgpu::testing
