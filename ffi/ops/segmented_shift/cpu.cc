// In a tile, the rows of a segment that stay within it are one copy.
#include "ops/move_rows/cpu.h"

#include "ops/segmented_shift/operands.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

template <int64_t kBytes>
void run(const SegmentedShiftOperands& operands, cpu::RowMover<kBytes> rows, cpu::Executor& executor) {
  cpu::for_each_work_tile(executor, operands.work, cpu::rows_per_task(rows.width()),
                          [&](int64_t problem, const WorkRow& row, Range<int64_t> outputs, int64_t live_end) {
                            const char* const x = operands.x.of_problem(problem);
                            char* const out = operands.out.of_problem(problem);
                            const std::vector<char> fill = cpu::fill_row(operands.fill, problem, rows.width());
                            const int64_t by = operands.distance(problem);
                            for_each_run(row, {outputs.begin, live_end}, [&](int64_t segment, Range<int64_t> run) {
                              // [first, last): the segment's rows; [begin, end): where they go in the run.
                              const bool is_last = segment + 1 >= row.objects;
                              const int64_t first =
                                  segment < row.first ? row.total : maximum<int64_t>(row.start(segment), 0);
                              const int64_t last = is_last ? row.total : minimum(row.start(segment + 1), row.total);
                              const int64_t begin = clamp(first + by, run.begin, run.end);
                              const int64_t end = clamp(last + by, begin, run.end);
                              rows.repeat(out, {run.begin, begin}, run.end, fill.data());
                              rows.copy(out, begin, x, begin - by, end - begin);
                              rows.repeat(out, {end, run.end}, fill.data());
                            });
                            rows.repeat(out, {live_end, outputs.end}, fill.data());
                          });
}

}  // namespace

void cpu::segmented_shift(const Call& call, Executor& executor) {
  const SegmentedShiftOperands operands(call);
  dispatch_row_bytes(operands.out.row_bytes,
                     [&](auto width) { run(operands, RowMover<width>{operands.out.row_bytes}, executor); });
}

}  // namespace mgpu
