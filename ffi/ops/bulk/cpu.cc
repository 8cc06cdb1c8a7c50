#include "ops/move_rows/cpu.h"

#include "ops/bulk/operands.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

template <int64_t kBytes>
void run_bulk(const BulkOperands& operands, cpu::RowMover<kBytes> rows, cpu::Executor& executor) {
  const bool inserts = operands.work.drift > 0;
  const int64_t tile = cpu::rows_per_task(rows.width());
  cpu::for_each_work_tile(executor, operands.work, tile,
                          [&](int64_t problem, const WorkRow& row, Range<int64_t> outputs, int64_t live_end) {
                            const char* const x = operands.x.of_problem(problem);
                            const char* const values = operands.values.of_problem(inserts ? problem : 0);
                            char* const out = operands.out.of_problem(problem);
                            const std::vector<char> fill = cpu::fill_row(operands.fill, problem, rows.width());
                            for_each_run(row, {outputs.begin, live_end}, [&](int64_t object, Range<int64_t> run) {
                              if (inserts && object >= row.first && row.start(object) == run.begin) {
                                rows.copy(out, run.begin++, values, object, 1);
                              }
                              // `object - first + 1` items were removed or inserted before this run.
                              const int64_t source = run.begin - row.drift * (object - row.first + 1);
                              const int64_t begin = clamp<int64_t>(-source, 0, run.size());
                              const int64_t end = clamp<int64_t>(operands.x.count - source, begin, run.size());
                              rows.copy(out, run.begin + begin, x, source + begin, end - begin);
                              rows.repeat(out, {run.begin, run.begin + begin}, fill.data());
                              rows.repeat(out, {run.begin + end, run.end}, fill.data());
                            });
                            rows.repeat(out, {live_end, outputs.end}, fill.data());
                          });
}

void run_bulk(const BulkOperands& operands, cpu::Executor& executor) {
  cpu::dispatch_row_bytes(operands.out.row_bytes, [&](auto width) {
    run_bulk(operands, cpu::RowMover<width>{operands.out.row_bytes}, executor);
  });
}

}  // namespace

void cpu::bulk_remove(const Call& call, Executor& executor) { run_bulk(BulkOperands(call, false), executor); }
void cpu::bulk_insert(const Call& call, Executor& executor) { run_bulk(BulkOperands(call, true), executor); }

}  // namespace mgpu
