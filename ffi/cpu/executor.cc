#include "cpu/executor.h"

#include <algorithm>
#include <atomic>
#include <memory>

namespace mgpu::cpu {

void run_tasks(Executor& executor, int64_t count, void (*run)(const void* body, int64_t i), const void* body) {
  struct Shared {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> finished{0};
  };
  if (count <= 0) return;
  const int64_t helpers = std::min<int64_t>(executor.concurrency(), count) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < count; ++i) run(body, i);
    return;
  }
  auto shared = std::make_shared<Shared>();
  // A helper that starts late finds no task left and does not touch `body`, which may be gone by then.
  auto work = [shared, count, run, body] {
    for (int64_t i; (i = shared->next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      run(body, i);
      if (shared->finished.fetch_add(1, std::memory_order_acq_rel) + 1 == count) shared->finished.notify_all();
    }
  };
  for (int64_t i = 0; i < helpers; ++i) executor.schedule(work);
  work();
  for (int64_t done; (done = shared->finished.load(std::memory_order_acquire)) < count;) shared->finished.wait(done);
}

}  // namespace mgpu::cpu
