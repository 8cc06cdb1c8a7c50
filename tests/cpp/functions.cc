// The kernels of compiled functions on the CPU, by functions that are written here: results against loops, and orders
// that are none, through the threads that compiled libraries are lent.
#include <algorithm>
#include <vector>

#include "check.h"
#include "cpu/compiled/kernel.h"
#include "cpu/reduce.h"
#include "cpu/scan.h"
#include "cpu/segmented_sort.h"
#include "executors.h"

namespace mgpu::testing {

namespace {

// Affine maps, which do not commute.
struct Map {
  static constexpr int kLeaves = 2;
  static constexpr int kLargest = 8;
  uint32_t factor[1];
  uint32_t term[1];

  template <int kLeaf, typename Item>
  static auto& leaf(Item& item) {
    if constexpr (kLeaf == 0) {
      return item.factor;
    } else {
      return item.term;
    }
  }
};

template <bool kBackwards, bool kWithoutOwn>
struct Composition {
  using Item = Map;
  using Element = Map;
  using Result = Map;
  static constexpr bool kHasNeutral = false, kCommutes = false, kBranches = false, kLoads = false, kFinishes = false;
  static constexpr bool kReverse = kBackwards, kExclusive = kWithoutOwn;
  Captures captures;

  static Map combine(const Map& a, const Map& b) {
    return {a.factor[0] * b.factor[0], a.term[0] * b.factor[0] + b.term[0]};
  }
  static Map zero() { return {0, 0}; }
  static Map dead() { return {0, 0}; }
  static Map nothing() { return {7, 7}; }
};

cpu::LentThreads lend(cpu::Executor& executor) {
  return {&executor, executor.concurrency(),
          [](void* executor, int64_t count, void (*body)(const void*, int64_t), const void* context) {
            parallel_for(*static_cast<cpu::Executor*>(executor), count, [=](int64_t i) { body(context, i); });
          }};
}

struct Maps {
  std::vector<uint32_t> factors, terms;

  explicit Maps(int64_t n, uint32_t seed = 1) : factors(n), terms(n) {
    for (int64_t i = 0; i < n; ++i) {
      factors[i] = (seed = seed * 1664525 + 1013904223) >> 16 | 1;
      terms[i] = (seed = seed * 1664525 + 1013904223) >> 16;
    }
  }
  Map operator[](int64_t i) const { return {factors[i], terms[i]}; }
  ItemArrays<Map> source() const { return {{factors.data(), terms.data()}}; }
  template <typename Operator>
  ResultVector<Operator> target() {
    return {{factors.data(), terms.data()}};
  }
};

bool same(const Map& a, const Map& b) { return a.factor[0] == b.factor[0] && a.term[0] == b.term[0]; }

template <bool kReverse, bool kExclusive>
void expect_scan(cpu::Executor& executor, int64_t n, int64_t live, std::vector<int32_t> heads) {
  using Function = Composition<kReverse, kExclusive>;
  using Operator = FunctionOperator<Function>;
  const Maps x(n);
  Maps result(n), total(1);
  const int32_t count = static_cast<int32_t>(live);
  Segments segments;
  segments.length = n;
  segments.heads = {heads.data(), false};
  segments.heads_count = static_cast<int64_t>(heads.size());
  segments.counts = {{&count, false}, 0};
  const cpu::ScanProblem<Operator> problem{
      x.source(), segments, kExclusive, kReverse, result.target<Operator>(), total.target<Operator>(), {{{}, n}}};
  const cpu::LentThreads lent = lend(executor);
  problem.run(lent);
  std::vector<bool> starts(n + 1);
  starts[0] = true;
  for (const int32_t head : heads) starts[std::clamp<int64_t>(head, 0, n)] = true;
  bool some = false;
  Map state{};
  for (int64_t k = 0; k < live; ++k) {
    const int64_t i = kReverse ? live - 1 - k : k;
    if (k > 0 && starts[kReverse ? i + 1 : i]) some = false;
    const Map next = some ? Function::combine(state, x[i]) : x[i];
    CHECK(same(result[i], !kExclusive ? next : some ? state : Function::nothing()));
    state = next;
    some = true;
  }
  for (int64_t i = live; i < n; ++i) CHECK(same(result[i], Function::dead()));
  if (heads.empty()) CHECK(same(total[0], live > 0 ? state : Function::nothing()));
}

// Says anything about two keys, or compares them.
template <bool kNoise>
struct Order {
  using Word = uint32_t;
  static constexpr bool kTotal = false;
  Word encode(Word bits) const { return bits; }
  Word decode(Word code) const { return code; }
  bool less(Word a, Word b) const { return kNoise ? (a * 40503 ^ b * 10007) % 7 < 3 : a / 8 < b / 8; }
};

template <bool kNoise>
void expect_sort(cpu::Executor& executor, int64_t n) {
  std::vector<uint32_t> keys(n), sorted(n), indices(n), wanted(n);
  for (int64_t i = 0; i < n; ++i) keys[i] = static_cast<uint32_t>(i * 2654435761u) >> 8;
  Segments segments;
  segments.length = n;
  const Order<kNoise> order;
  const cpu::SortProblem<Order<kNoise>, uint32_t> problem{
      segments, {order, keys.data(), nullptr, n}, {order, sorted.data(), indices.data()}};
  const cpu::LentThreads lent = lend(executor);
  problem.run(lent);
  for (int64_t i = 0; i < n; ++i) CHECK(sorted[i] == keys[indices[i]]);
  for (int64_t i = 0; i < n; ++i) wanted[i] = static_cast<uint32_t>(i);
  if (kNoise) {
    std::sort(indices.begin(), indices.end());
  } else {
    std::stable_sort(wanted.begin(), wanted.end(),
                     [&](uint32_t a, uint32_t b) { return order.less(keys[a], keys[b]); });
  }
  CHECK(indices == wanted);
}

}  // namespace

TEST(functions_are_scanned_in_order) {
  ThreadPool pool(3);
  for (const int64_t n : {1, 31, 700, 3 * static_cast<int>(cpu::kScanTile) + 5}) {
    for (const int64_t live : {n, n / 2, int64_t{0}}) {
      for (const std::vector<int32_t>& heads : {std::vector<int32_t>{}, {0, 5, 5, 600, 20000, 1 << 30}}) {
        expect_scan<false, false>(pool, n, live, heads);
        expect_scan<true, true>(pool, n, live, heads);
      }
    }
  }
}

TEST(functions_are_reduced_in_order) {
  ThreadPool pool(3);
  using Function = Composition<false, false>;
  using Operator = FunctionOperator<Function>;
  const int64_t n = 2 * cpu::kReduceTile + 77;
  const Maps x(n);
  const auto combined = [&](int64_t begin, int64_t end) {
    if (begin >= end) return Function::nothing();
    Map state = x[begin];
    for (int64_t i = begin + 1; i < end; ++i) state = Function::combine(state, x[i]);
    return state;
  };
  Segments segments;
  segments.length = n;
  Maps total(1);
  const cpu::LentThreads lent = lend(pool);
  cpu::ReduceProblem<Operator, false>{x.source(), segments, total.target<Operator>(), {{{}, n}}}.run(lent);
  CHECK(same(total[0], combined(0, n)));
  std::vector<int32_t> heads = {3, 3, 10, 11, 40000};
  for (int32_t head = 40100; head < n; head += head % 97 + 1) heads.push_back(head);
  segments.heads = {heads.data(), false};
  segments.heads_count = static_cast<int64_t>(heads.size());
  Maps totals(segments.heads_count);
  cpu::ReduceProblem<Operator, true>{x.source(), segments, totals.target<Operator>(), {{{}, n}}}.run(lent);
  for (size_t i = 0; i < heads.size(); ++i) {
    CHECK(same(totals[i], combined(heads[i], i + 1 < heads.size() ? heads[i + 1] : n)));
  }
}

TEST(orders_that_are_none_lose_nothing) {
  ThreadPool pool(3);
  for (const int64_t n : {1, 9, 1000, 5 * static_cast<int>(cpu::kSortTile) + 3}) {
    expect_sort<false>(pool, n);
    expect_sort<true>(pool, n);
  }
}

}  // namespace mgpu::testing
