// A task sorts a bucket's rows of b by code, then looks up the bucket's rows of a.
#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "algorithm/partition_point.h"
#include "ops/bucket_join/operands.h"
#include "runtime/executor.h"
#include "runtime/operations.h"

namespace mgpu {

namespace {

constexpr int kSlots = 1 << kBucketSlotBits;

// A bucket's rows of b, stably sorted by slot (the next bits of the code), then by code.
class BucketTable {
 public:
  BucketTable(const BucketJoinOperands& operands, const BucketSide& b, Range<int64_t> bucket) : operands_(operands) {
    const int64_t count = minimum<int64_t>(bucket.size(), kBucketCapacity);
    for (int64_t i = 0; i < count; ++i) ++begins_[bucket_slot(b.codes[bucket.begin + i], operands.bits) + 1];
    for (int slot = 0; slot < kSlots; ++slot) begins_[slot + 1] += begins_[slot];
    std::array<int, kSlots + 1> next = begins_;
    entries_.resize(count);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t code = b.codes[bucket.begin + i];
      entries_[next[bucket_slot(code, operands.bits)]++] = {code, b.rows[bucket.begin + i]};
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      if (begins_[slot + 1] - begins_[slot] < 2) continue;
      std::stable_sort(entries_.begin() + begins_[slot], entries_.begin() + begins_[slot + 1],
                       [](const Entry& x, const Entry& y) { return x.code < y.code; });
    }
  }

  Range<int> find(uint32_t code) const {
    const int slot = bucket_slot(code, operands_.bits);
    const int end = begins_[slot + 1];
    const int first = partition_point(begins_[slot], end, [&](int i) { return entries_[i].code < code; });
    return {first, partition_point(first, end, [&](int i) { return entries_[i].code == code; })};
  }

  int32_t row(int place) const { return entries_[place].row; }

 private:
  struct Entry {
    uint32_t code;
    int32_t row;
  };
  const BucketJoinOperands& operands_;
  std::array<int, kSlots + 1> begins_{};
  std::vector<Entry> entries_;
};

void join_bucket(const BucketJoinOperands& operands, int64_t problem, int64_t number, std::atomic<uint64_t>& counter) {
  const BucketSide a = operands.a_side(problem);
  const BucketSide b = operands.b_side(problem);
  const Range<int64_t> bucket = a.bucket(number);
  const Range<int64_t> others = b.bucket(number);
  if (bucket.size() == 0 || (others.size() == 0 && !operands.keep_a)) return;
  const BucketTable table(operands, b, others);
  std::vector<Range<int>> found(minimum<int64_t>(bucket.size(), kBucketChunk));
  for (int64_t begin = bucket.begin; begin < bucket.end; begin += kBucketChunk) {
    const int64_t count = minimum<int64_t>(bucket.end - begin, kBucketChunk);
    int64_t made = 0;
    for (int64_t i = 0; i < count; ++i) {
      found[i] = table.find(a.codes[begin + i]);
      made += maximum<int64_t>(found[i].size(), operands.keep_a);
    }
    // Output rows past the end of the result are counted but not written.
    auto slot = static_cast<int64_t>(counter.fetch_add(made, std::memory_order_relaxed));
    const auto put = [&](int32_t a_row, int32_t b_row) {
      if (slot < operands.size) {
        operands.a_rows[problem * operands.size + slot] = a_row;
        operands.b_rows[problem * operands.size + slot] = b_row;
      }
      ++slot;
    };
    for (int64_t i = 0; i < count && slot < operands.size; ++i) {
      const int32_t a_row = a.rows[begin + i];
      for (int place = found[i].begin; place < found[i].end; ++place) put(a_row, table.row(place));
      if (found[i].size() == 0 && operands.keep_a) put(a_row, -1);
    }
  }
}

}  // namespace

void cpu::bucket_join(const Call& call, Executor& executor) {
  const BucketJoinOperands operands(call);
  std::vector<std::atomic<uint64_t>> counters(operands.problems);
  parallel_for(executor, operands.problems * operands.buckets(), [&](int64_t task) {
    const int64_t problem = task / operands.buckets();
    join_bucket(operands, problem, task - problem * operands.buckets(), counters[problem]);
  });
  parallel_for(executor, operands.problems, [&](int64_t problem) {
    const uint64_t count = counters[problem];
    operands.set_count(problem, count);
    const auto end = static_cast<int64_t>(minimum<uint64_t>(count, operands.size));
    for (int32_t* rows : {operands.a_rows, operands.b_rows}) {
      std::fill(rows + problem * operands.size + end, rows + (problem + 1) * operands.size, -1);
    }
  });
}

}  // namespace mgpu
