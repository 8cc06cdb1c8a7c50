#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "check.h"
#include "executors.h"

namespace mgpu::testing {

namespace {

struct Failure {
  std::string text;
};

// Some tasks throw, and the body is destroyed right afterwards. `fails(is_caller, i)` says whether task i throws.
template <typename Fails>
void expect_failure(cpu::Executor& executor, Fails fails) {
  constexpr int64_t kTasks = 200;
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int64_t> inside{0}, failures{0};
  std::string caught;
  try {
    const auto body = std::make_unique<std::vector<int>>(kTasks);
    cpu::parallel_for(executor, kTasks, [&](int64_t i) {
      ++inside;
      (*body)[i] = 1;
      if (fails(std::this_thread::get_id() == caller, i)) {
        ++failures;
        --inside;
        throw Failure{std::string(40, 'x')};
      }
      std::this_thread::yield();
      --inside;
    });
  } catch (const Failure& failure) {
    caught = failure.text;
  }
  CHECK(inside == 0);  // no helper is still in the body
  CHECK(caught == std::string(failures > 0 ? 40 : 0, 'x'));
}

}  // namespace

TEST(parallel_for_runs_each_task_once) {
  ThreadPool pool(3);
  for (const int64_t count : {0, 1, 2, 3, 5, 1000}) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::vector<int> runs(count);  // not atomic: the caller must see afterwards what a task wrote
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
  for (const auto& task : late.tasks) task();  // the body is gone, so no task may call it
}

TEST(parallel_for_throws_what_tasks_throw_when_no_helper_is_in_the_body) {
  ThreadPool pool(3);
  SerialExecutor serial;
  for (int repeat = 0; repeat < 200; ++repeat) {
    expect_failure(pool, [](bool is_caller, int64_t) { return is_caller; });
    expect_failure(pool, [](bool is_caller, int64_t) { return !is_caller; });
    expect_failure(pool, [](bool, int64_t) { return true; });
    expect_failure(pool, [&](bool, int64_t i) { return i == repeat; });
    expect_failure(serial, [&](bool, int64_t i) { return i == repeat; });
  }
}

TEST(parallel_for_that_fails_leaves_nothing_for_late_helpers) {
  LateExecutor late;
  int64_t begun = 0;
  expect_failure(late, [&](bool, int64_t) { return ++begun == 5; });
  CHECK(begun == 5 && late.tasks.size() == 3);
  for (const auto& task : late.tasks) task();
  CHECK(begun == 5);
}

TEST(parallel_for_waits_for_helpers_where_one_cannot_be_scheduled) {
  struct Refusing final : cpu::Executor {
    ThreadPool pool{2};
    int scheduled = 0;
    int concurrency() const override { return 3; }
    void schedule(std::function<void()> task) override {
      if (++scheduled % 2 == 0) throw std::bad_alloc();
      pool.schedule(std::move(task));
    }
  } refusing;
  for (int repeat = 0; repeat < 50; ++repeat) {
    bool failed = false;
    try {
      std::vector<int> runs(500);
      cpu::parallel_for(refusing, 500, [&](int64_t i) { ++runs[i]; });
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    CHECK(failed);
  }
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
