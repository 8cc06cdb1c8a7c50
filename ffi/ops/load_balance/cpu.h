#pragma once

#include <algorithm>

#include "algorithm/load_balance.h"
#include "runtime/executor.h"

namespace mgpu::cpu {

// Calls body(problem, row, outputs, live_end) for each tile of `tile` outputs of every problem. The outputs from
// live_end on are past the total.
template <typename Body>
void for_each_work_tile(Executor& executor, const WorkList& work, int64_t tile, const Body& body) {
  const int64_t tiles = ceil_div(work.size, tile);
  parallel_for(executor, work.problems * tiles, [&](int64_t i) {
    const auto find = [](auto... search) { return partition_point(search...); };
    const int64_t problem = i / tiles;
    const int64_t begin = (i - problem * tiles) * tile;
    WorkRow row = work.row(problem);
    row.first = row.find_first(find);
    row.total = row.find_total(work.size, find);
    const Range<int64_t> outputs{begin, std::min(work.size, begin + tile)};
    body(problem, row, outputs, clamp(row.total, outputs.begin, outputs.end));
  });
}

// Writes value(i) to out[i] for i in `run`, in whole bursts if `limit` allows.
// A burst may write past the run; later runs overwrite the excess.
template <typename T, typename Value>
void write_run(T* out, Range<int64_t> run, int64_t limit, Value value) {
  constexpr int64_t kBurst = sizeof(T) < 4 ? 16 : sizeof(T) == 4 ? 8 : 4;
  int64_t i = run.begin;
  for (; i < run.end && i + kBurst <= limit; i += kBurst) {
    for (int64_t k = 0; k < kBurst; ++k) out[i + k] = value(i + k);
  }
  for (; i < run.end; ++i) out[i] = value(i);
}

}  // namespace mgpu::cpu
