// segmented_top_k on the CPU. A task has several segments; all threads search a long segment.
#include <vector>

#include "ops/common/dispatch.h"
#include "ops/common/read.h"
#include "ops/segmented_top_k/operands.h"
#include "ops/top_k/best.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

using cpu::kTopKPart;

template <typename Order>
class SegmentedTopK {
  using Word = typename Order::Word;

 public:
  SegmentedTopK(const SegmentedTopKOperands& operands, Order order)
      : operands_(operands), order_(order), segments_(bounded_segments(operands)) {}

  void run(cpu::Executor& executor) const {
    const int64_t all = operands_.rows * operands_.segments;
    const int64_t mean = operands_.length / operands_.segments;
    const int64_t group = std::max<int64_t>(1, kTopKPart / 4 / (mean + 16));  // segments of a task
    std::vector<std::vector<int64_t>> long_segments(ceil_div(all, group));
    cpu::parallel_for(executor, ceil_div(all, group), [&](int64_t task) {
      for (int64_t i = task * group; i < std::min(all, (task + 1) * group); ++i) {
        const Segment segment = this->segment(i);
        if (segment.size > kTopKPart) {
          long_segments[task].push_back(i);
        } else {
          store(i, segment, cpu::Best<Order>(order_, operands_.k, segment.keys, 0, segment.size));
        }
      }
    });
    for (const auto& of_task : long_segments) {
      for (int64_t i : of_task) {
        const Segment segment = this->segment(i);
        store(i, segment, cpu::best_of_parts(executor, order_, operands_.k, segment.keys, segment.size));
      }
    }
  }

 private:
  struct Segment {
    const Word* keys;
    int64_t begin, size;
  };
  Segment segment(int64_t i) const {
    const int64_t row = i / operands_.segments;
    const Range<int64_t> range = segments_[i];
    return {static_cast<const Word*>(operands_.x) + row * operands_.x_stride + range.begin, range.begin, range.size()};
  }
  void store(int64_t i, const Segment& segment, cpu::Best<Order> best) const {
    best.store(operands_.values, operands_.indices, i * operands_.k, segment.begin);
  }

  const SegmentedTopKOperands& operands_;
  Order order_;
  std::vector<Range<int64_t>> segments_;
};

}  // namespace

void cpu::segmented_top_k(const Call& call, Executor& executor) {
  const SegmentedTopKOperands operands(call);
  if (operands.rows * operands.segments * operands.k == 0) return;
  dispatch_order(call, operands.key_type, operands.largest,
                 [&](auto order) { SegmentedTopK<decltype(order)>(operands, order).run(executor); });
}

}  // namespace mgpu
