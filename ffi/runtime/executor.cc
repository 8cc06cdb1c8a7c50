#include "runtime/executor.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <utility>

namespace mgpu::cpu {

void run_tasks(Executor& executor, int64_t count, void (*run)(const void* body, int64_t i), const void* body) {
  struct Shared {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> finished{0};
    std::atomic_flag failed;
    std::exception_ptr error;  // the first one

    void fail() {
      if (!failed.test_and_set(std::memory_order_relaxed)) error = std::current_exception();
    }
  };
  if (count <= 0) return;
  const int64_t helpers = std::min<int64_t>(executor.concurrency(), count) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < count; ++i) run(body, i);
    return;
  }
  auto shared = std::make_shared<Shared>();
  // A helper that starts late finds no task left and does not touch `body`, which may be gone by then. After a failure,
  // tasks are still taken one by one, but not run, so no helper is in the body once all of them are finished.
  auto work = [shared, count, run, body] {
    for (int64_t i; (i = shared->next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        if (!shared->failed.test(std::memory_order_relaxed)) run(body, i);
      } catch (...) {
        shared->fail();
      }
      if (shared->finished.fetch_add(1, std::memory_order_acq_rel) + 1 == count) shared->finished.notify_all();
    }
  };
  try {
    for (int64_t i = 0; i < helpers; ++i) executor.schedule(work);
  } catch (...) {
    shared->fail();
  }
  work();
  for (int64_t done; (done = shared->finished.load(std::memory_order_acquire)) < count;) shared->finished.wait(done);
  // From here on, only the calling thread holds the exception, even if late helpers still hold `shared`.
  if (const auto error = std::exchange(shared->error, nullptr)) std::rethrow_exception(error);
}

}  // namespace mgpu::cpu
