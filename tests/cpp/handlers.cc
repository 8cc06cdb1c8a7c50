// Calls the CPU functions of operations as XLA's handlers do: on garbage, on unsupported arrays and attributes, and
// without memory. Arrays have exactly their size, so that sanitizers see any access outside of them.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "executors.h"
#include "ops/common/dispatch.h"
#include "runtime/operations.h"
#include "runtime/signature.h"
#include "runtime/workspace.h"

namespace {

// Counts down to the allocation that fails, over all threads.
std::atomic<int64_t> allocations_left{INT64_MAX};

}  // namespace

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return --allocations_left == 0 ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}
void* operator new(size_t bytes) {
  void* const data = operator new(bytes, std::nothrow);
  if (!data) throw std::bad_alloc();
  return data;
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }

namespace mgpu::testing {

namespace {

#ifdef __SANITIZE_THREAD__
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

struct GivenAttributes final : Attributes {
  int64_t operator[](std::string_view name) const override {
    const auto found = values.find(name);
    CHECK(found != values.end());
    return found->second;
  }
  std::map<std::string, int64_t, std::less<>> values;
};

class Garbage {
 public:
  explicit Garbage(uint64_t seed) : random_(seed) {
    switch (draw(0, 5)) {
      case 0: lead_ = {draw(0, 5)}; break;
      case 1: lead_ = {2, draw(0, 3)}; break;
      default: break;
    }
    // Large lengths are not batched.
    const bool large = lead_.empty() && draw(0, 7) == 0;
    largest_ = large ? int64_t{1} << draw(15, 17) : int64_t{1} << draw(0, 9);
  }

  int64_t draw(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool flip() { return draw(0, 1) == 1; }
  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[draw(0, static_cast<int64_t>(choices.size()) - 1)];
  }

  int64_t length() { return draw(0, 9) == 0 ? 0 : draw(0, largest_); }
  int64_t batch_rank() const { return static_cast<int64_t>(lead_.size()); }
  DType index_type() { return flip() ? DType::s32 : DType::s64; }
  DType key_type() { return static_cast<DType>(draw(0, static_cast<int64_t>(DType::f64))); }
  DType payload_type() { return one_of({DType::u32, DType::f32, DType::s64, DType::f64}); }
  void limit(int64_t largest) { largest_ = std::min(largest_, largest); }

  int64_t attribute(const char* name, int64_t low, int64_t high) { return attributes_.values[name] = draw(low, high); }

  // Operands have all batch axes, but shareable operands sometimes have none.
  void keys(DType dtype, int64_t length, bool shareable = true) { fill_keys(operand(dtype, {length}, shareable)); }
  void rows(DType dtype, int64_t count, int64_t elements) { fill_keys(operand(dtype, {count, elements}, true)); }
  void into(DType dtype, int64_t count, int64_t elements) { fill_keys(operand(dtype, {count, elements}, false)); }
  void indices(int64_t count, int64_t limit) { indices(index_type(), count, limit); }
  void indices(DType type, int64_t count, int64_t limit) { fill_indices(operand(type, {count}, true), limit); }
  void index_rows(int64_t rows, int64_t count, int64_t limit) {
    fill_indices(operand(index_type(), {rows, count}, true), limit);
  }
  void numbers(int64_t count, int64_t limit) { fill_indices(operand(index_type(), {count}, false), limit); }
  void count(int64_t limit) {
    if (flip()) return absent();
    fill_indices(operand(index_type(), {1}, true), limit);
  }
  void flags(int64_t length) {
    if (flip()) {
      const Array& array = operand(DType::boolean, {length}, true);
      for (int64_t i = 0; i < array.size(); ++i) array.as<uint8_t>()[i] = flip();
    } else {
      fill_keys(operand(DType::u32, {ceil_div<int64_t>(length, 32)}, true));
    }
  }
  void absent() { operands_.push_back(make(DType::s32, {0})); }

  void result(DType dtype, std::vector<int64_t> own) { results_.push_back(make(dtype, with_lead(std::move(own)))); }

  void run(const char* name, void (*function)(const Call&, cpu::Executor&), cpu::Executor& executor) {
    const std::vector<std::vector<char>> before = contents();
    function(Call{name, operands_, results_, attributes_}, executor);
    CHECK(contents() == before);
  }

  const std::vector<Array>& results() const { return results_; }

  // Whether the k-th allocation of the call failed. The call must then report it, except in bucket_join.
  bool fails_at(int64_t k, const char* name, void (*function)(const Call&, cpu::Executor&), cpu::Executor& executor) {
    const Call call{name, operands_, results_, attributes_};
    bool tells = false;
    allocations_left = k;
    try {
      function(call, executor);
    } catch (const std::bad_alloc&) {
      tells = true;
    }
    const bool failed = allocations_left.exchange(INT64_MAX) <= 0;
    CHECK(failed == tells || (failed && std::string_view(name) == "bucket_join"));
    return failed;
  }

  // If the operation does not accept the call, the error must be the caller's.
  template <typename Function>
  bool is_taken(const char* name, Function function) const {
    try {
      const Call call{name, operands_, results_, attributes_};
      expect_sizes(call);
      function(call);
      return true;
    } catch (const CallError&) {
      return false;
    }
  }

  void spoil() {
    std::vector<Array>& arrays = flip() || results_.empty() ? operands_ : results_;
    if (arrays.empty()) return;
    const auto any = [&] { return draw(0, static_cast<int64_t>(arrays.size()) - 1); };
    const int64_t place = any();
    DType dtype = arrays[place].dtype;
    std::vector<int64_t> dimensions = arrays[place].dimensions;
    switch (draw(0, 9)) {
      case 0: dimensions.insert(dimensions.begin(), draw(0, 3)); break;
      case 1: dimensions.push_back(draw(0, 3)); break;
      case 2:
        if (!dimensions.empty()) dimensions.pop_back();
        break;
      case 3:
        if (!dimensions.empty()) dimensions[draw(0, dimensions.size() - 1)] = draw(0, 2 * largest_);
        break;
      case 4:
        if (!dimensions.empty()) dimensions.back() = std::max<int64_t>(0, dimensions.back() + draw(-1, 1));
        break;
      case 5: return std::swap(arrays[place], arrays[any()]);
      case 6: return flip() ? arrays.pop_back() : arrays.push_back(make(dtype, dimensions));
      case 7: return spoil_attribute();
      default: dtype = static_cast<DType>(draw(0, static_cast<int64_t>(DType::c128)));
    }
    arrays[place] = make(dtype, dimensions);
    if (&arrays != &operands_) return;
    const bool are_indices = dtype == DType::s32 || dtype == DType::s64;
    are_indices ? fill_indices(arrays[place], largest_) : fill_keys(arrays[place]);
  }

  // Gives some axes and sizes lengths of 2^16 - 1 to 2^62 + 1. Equal lengths stay equal. The arrays have no data.
  void stretch() {
    std::map<int64_t, int64_t> lengths;
    const auto stretch = [&](int64_t& length) {
      const auto [found, is_new] = lengths.try_emplace(length, length);
      if (is_new && flip()) found->second = (int64_t{1} << draw(16, 62)) + draw(-1, 1);
      length = found->second;
    };
    for (auto* arrays : {&operands_, &results_}) {
      for (Array& array : *arrays) {
        array.data = nullptr;
        for (int64_t& length : array.dimensions) stretch(length);
      }
    }
    for (const char* name : {"size", "k", "bins"}) {
      if (const auto found = attributes_.values.find(name); found != attributes_.values.end()) stretch(found->second);
    }
    if (draw(0, 3) == 0) spoil_attribute();
  }

 private:
  void spoil_attribute() {
    if (attributes_.values.empty()) return;
    auto& [name, value] = *std::next(attributes_.values.begin(), draw(0, attributes_.values.size() - 1));
    value = flip() ? draw(-2, 12) : static_cast<int64_t>(random_()) >> draw(0, 40);
  }

  std::vector<int64_t> with_lead(std::vector<int64_t> own) const {
    own.insert(own.begin(), lead_.begin(), lead_.end());
    return own;
  }

  Array make(DType dtype, std::vector<int64_t> dimensions) {
    Array array{nullptr, dtype, std::move(dimensions)};
    if (array.bytes() == 0 && flip()) return array;  // the address of an empty array is unspecified
    room_.emplace_back(new char[array.bytes()]);
    array.data = room_.back().get();
    std::memset(array.data, 0x5a, array.bytes());
    return array;
  }

  const Array& operand(DType dtype, std::vector<int64_t> own, bool shareable) {
    operands_.push_back(make(dtype, shareable && flip() ? std::move(own) : with_lead(std::move(own))));
    return operands_.back();
  }

  void fill_keys(const Array& array) {
    const int width = byte_width(array.dtype);
    const int64_t kind = draw(0, 2);
    for (int64_t i = 0; i < array.size(); ++i) {
      const uint64_t word = kind == 0 ? random_() : kind == 1 ? static_cast<uint64_t>(draw(0, 12)) : i / 3;
      std::memcpy(array.as<char>() + i * width, &word, std::min<int64_t>(width, 8));
      if (width > 8) std::memcpy(array.as<char>() + i * width + 8, &word, width - 8);
    }
  }

  void fill_indices(const Array& array, int64_t limit) {
    using Limits = std::numeric_limits<int64_t>;
    constexpr int64_t kNarrow = int64_t{1} << 31;
    const int64_t kind = draw(0, 4);
    std::vector<int64_t> values(array.size());
    for (int64_t& value : values) {
      switch (kind == 4 ? draw(0, 2) : kind) {
        case 0: value = static_cast<int64_t>(random_()); break;
        case 1:
          value = one_of<int64_t>({Limits::min(), Limits::min() + 1, -kNarrow - 1, -kNarrow, -limit - 1, -1, 0, 1,
                                   limit - 1, limit, limit + 1, kNarrow - 1, kNarrow, int64_t{1} << 60,
                                   Limits::max() - 1, Limits::max()});
          break;
        default: value = draw(0, limit + 1);
      }
    }
    if (kind == 3) std::sort(values.begin(), values.end());
    for (int64_t i = 0; i < array.size(); ++i) {
      if (array.dtype == DType::s64) {
        array.as<int64_t>()[i] = values[i];
      } else {
        array.as<int32_t>()[i] =
            static_cast<int32_t>(kind == 1 ? std::clamp<int64_t>(values[i], -kNarrow, kNarrow - 1) : values[i]);
      }
    }
  }

  std::vector<std::vector<char>> contents() const {
    std::vector<std::vector<char>> all;
    for (const Array& array : operands_) all.emplace_back(array.as<char>(), array.as<char>() + array.bytes());
    return all;
  }

  std::mt19937_64 random_;
  std::vector<int64_t> lead_;
  int64_t largest_;
  GivenAttributes attributes_;
  std::vector<std::unique_ptr<char[]>> room_;
  std::vector<Array> operands_;
  std::vector<Array> results_;
};

// How to make the calls of each operation. An operation of operations.h that is missing here is a linker error.
namespace garbage {
#define MGPU_GARBAGE(name) void name(Garbage& make);
MGPU_OPERATIONS(MGPU_GARBAGE)
MGPU_CUDA_OPERATIONS(MGPU_GARBAGE)
MGPU_FUNCTION_OPERATIONS(MGPU_GARBAGE)
#undef MGPU_GARBAGE

DType row_type(Garbage& make) { return static_cast<DType>(make.draw(0, static_cast<int64_t>(DType::c128))); }
int64_t elements(Garbage& make) { return make.one_of<int64_t>({1, 1, 2, 3, 40}); }

void bulk_insert(Garbage& make) {
  const DType dtype = row_type(make);
  const int64_t width = elements(make), n = make.length(), m = make.length();
  make.rows(dtype, n, width);
  make.indices(m, n);
  make.rows(dtype, m, width);
  make.count(n);
  make.keys(dtype, 1);
  make.result(dtype, {make.flip() ? n + m : make.length(), width});
}

void bulk_remove(Garbage& make) {
  const DType dtype = row_type(make);
  const int64_t width = elements(make), n = make.length();
  make.rows(dtype, n, width);
  make.indices(make.length(), n);
  make.count(n);
  make.keys(dtype, 1);
  make.result(dtype, {make.length(), width});
}

void count_bins(Garbage& make) {
  const int64_t n = make.length(), bins = make.attribute("bins", 1, make.flip() ? 9 : 700);
  if (make.flip()) {
    make.indices(n, bins);
    make.absent();
  } else {
    const DType dtype = make.key_type();
    make.keys(dtype, n);
    make.keys(dtype, bins + 1);
  }
  make.result(make.index_type(), {bins});
}

void bucket_join(Garbage& make) {
  const int64_t n = make.length(), m = make.length(), size = make.length();
  const int64_t bounds = (int64_t{1} << make.draw(0, 4)) + 1;
  make.attribute("keep_a", 0, 1);
  for (const int64_t length : {n, m}) {
    make.keys(DType::u32, length);
    make.keys(DType::s32, length);
  }
  for (const int64_t limit : {n, m, n / 4096}) make.indices(DType::s32, bounds, limit);
  make.result(DType::s32, {size});
  make.result(DType::s32, {size});
  make.result(make.index_type(), {});
}

void group_search(Garbage& make) {
  const DType index = make.index_type();
  const int64_t n = make.length(), m = make.length();
  make.attribute("forward", 0, 1);
  make.indices(index, n, m);
  make.keys(DType::s32, n);
  make.keys(DType::s32, m);
  make.keys(DType::s32, 1);
  make.indices(1, 2 * n);
  make.count(n);
  make.count(m);
  make.result(index, {n});
}

void hash_groups(Garbage& make) {
  const int64_t n = make.length(), entries = int64_t{1} << make.draw(0, 12);
  make.attribute("entries", entries, entries);
  make.attribute("x_state", 1, 3);
  make.attribute("y_state", 0, 3);
  make.attribute("bucketed", 0, 1);
  const bool has_pairs = n > 0 && make.draw(0, 2) == 0;
  const auto word = [&] { return make.one_of({DType::u32, DType::s32}); };
  const DType dtype = has_pairs ? word() : make.one_of({DType::u32, DType::s32, DType::u64, DType::s64, DType::c64});
  make.keys(dtype, n, false);
  for (int c = 0; c < 2; ++c) make.draw(0, 2) > 0 ? make.keys(word(), n) : make.absent();
  make.count(n);
  has_pairs ? make.keys(word(), n) : make.absent();
  make.result(has_pairs ? DType::c64 : dtype, {entries + 1});
  for (int c = 0; c < 2; ++c) make.result(DType::u32, {entries + 1});
  make.result(DType::s32, {3});
}

void interval_expand(Garbage& make) {
  const DType dtype = row_type(make);
  const int64_t width = elements(make), objects = make.length(), size = make.length();
  make.rows(dtype, objects, width);
  make.indices(objects, size);
  make.count(size);
  make.keys(dtype, 1);
  make.result(dtype, {size, width});
}

void interval_gather(Garbage& make) {
  const DType dtype = row_type(make);
  const int64_t width = elements(make), objects = make.length(), size = make.length(), n = make.length();
  make.rows(dtype, n, width);
  make.indices(objects, n);
  make.indices(objects, size);
  make.count(size);
  make.keys(dtype, 1);
  make.result(dtype, {size, width});
}

void interval_move(Garbage& make) {
  const bool adds = make.attribute("adds", 0, 1) != 0;
  const DType dtype = adds ? make.one_of({DType::f16, DType::bf16, DType::f32, DType::f64}) : row_type(make);
  const int64_t width = elements(make);
  // If scattered intervals overlap, two tasks write to one place, and which is last is unspecified. With one task per
  // problem, there is no race.
  if (kThreadSanitizer) make.limit(64);
  const int64_t objects = make.length(), n = make.length(), places = make.length();
  make.rows(dtype, n, width);
  const bool gathers = make.attribute("gathers", 0, 1) != 0;
  gathers ? make.indices(objects, n) : make.absent();
  make.indices(objects, places);
  make.indices(objects, n);
  make.count(n);
  make.into(dtype, places, width);
  make.result(dtype, {places, width});
}

void join(Garbage& make) {
  const DType dtype = make.key_type(), index = make.index_type();
  const int64_t n = make.length(), m = make.length(), size = 2 * make.length();
  make.attribute("keep_a", 0, 1);
  make.attribute("keep_b", 0, 1);
  make.keys(dtype, n);
  make.keys(dtype, m);
  make.count(n);
  make.count(m);
  make.result(index, {size});
  make.result(index, {size});
  make.result(index, {});
}

void load_balance_search(Garbage& make) {
  const DType index = make.index_type();
  const int64_t size = make.length();
  make.indices(make.length(), size);
  make.count(size);
  make.result(index, {size});
  if (make.attribute("return_rank", 0, 1)) make.result(index, {size});
}

void merge(Garbage& make) {
  const DType dtype = make.key_type(), payload = make.payload_type();
  const int64_t n = make.length(), m = make.length();
  const bool of_runs = make.flip();
  const int64_t runs = make.draw(1, 9), size = of_runs ? make.draw(0, n) : n + m;
  make.attribute("descending", 0, 1);
  make.attribute("size", size, size);
  const auto mode = static_cast<PayloadMode>(make.attribute("payload", 0, 2));
  make.keys(dtype, n);
  of_runs ? make.absent() : make.keys(dtype, m);
  mode == PayloadMode::kGiven ? make.keys(payload, n) : make.absent();
  mode == PayloadMode::kGiven && !of_runs ? make.keys(payload, m) : make.absent();
  of_runs ? make.absent() : make.count(n);
  of_runs ? make.absent() : make.count(m);
  of_runs ? make.indices(runs, n) : make.absent();
  make.result(dtype, {size});
  if (mode != PayloadMode::kNone) make.result(payload, {size});
}

struct OperatorTypes {
  DType element;
  DType result;
};
OperatorTypes operator_types(Garbage& make, int64_t last) {
  const DType dtype = make.key_type();
  switch (make.attribute("op", 0, last)) {
    case 4:
    case 5: return {dtype, make.index_type()};
    case 6:
    case 7:
    case 8: {
      const DType of_bits = make.one_of({DType::boolean, DType::u8, DType::s16, DType::u32, DType::s64});
      return {of_bits, of_bits};
    }
    case 9: {
      const DType real = make.one_of({DType::f16, DType::bf16, DType::f32, DType::f64});
      return {real, real};
    }
    default: return {dtype, dtype};
  }
}

OperatorTypes reduction_types(Garbage& make) {
  if (make.attribute("wide", 0, 1) == 0) return operator_types(make, 9);
  make.attribute("op", 0, 0);
  return {make.one_of({DType::f16, DType::bf16}), DType::f32};
}

void order_statistics(Garbage& make) {
  const DType dtype = make.key_type();
  const int64_t n = make.length(), ranks = make.one_of<int64_t>({0, 1, 3, 20});
  make.keys(dtype, n);
  make.indices(ranks, n);
  make.count(n);
  make.result(dtype, {ranks});
}

void reduce(Garbage& make) {
  const OperatorTypes types = reduction_types(make);
  const int64_t n = make.length();
  make.keys(types.element, n, false);
  make.count(n);
  make.result(types.result, {});
}

void reduce_by_id(Garbage& make) {
  const OperatorTypes types = reduction_types(make);
  const int64_t n = make.length(), width = make.draw(0, 20);
  make.limit(300);
  const int64_t size = make.attribute("size", 0, make.length());
  make.rows(types.element, n, width);
  make.indices(n, size);
  make.count(n);
  make.result(types.result, {size, width});
}

void reduce_rows(Garbage& make) {
  const OperatorTypes types = reduction_types(make);
  const int64_t n = make.length(), m = make.length(), width = make.draw(0, 9) == 0 ? 1030 : make.draw(0, 70);
  make.limit(width > 70 ? 300 : 1 << 14);
  const int64_t rows = make.length();
  make.into(types.element, rows, width);
  make.indices(m, n);
  make.flip() ? make.numbers(n, rows) : make.absent();
  make.count(n);
  make.result(types.result, {m, width});
}

void gathered_rows(Garbage& make) {
  const bool weighted = make.flip();
  OperatorTypes types{make.key_type(), {}};
  if (weighted) {
    make.attribute("op", 0, 0);
    make.attribute("wide", 0, 0);
    while (byte_width(types.element) < 4 && types.element != DType::f16 && types.element != DType::bf16) {
      types.element = make.key_type();
    }
    types.result = types.element;
  } else {
    types = reduction_types(make);
  }
  const int64_t n = make.length(), m = make.length(), groups = make.draw(1, 3), width = groups * make.draw(0, 40);
  const int64_t items = make.flip() ? make.length() : 0;
  make.into(types.element, n, width);
  make.indices(m, n);
  items > 0 ? make.numbers(items, n) : make.absent();
  weighted ? make.into(types.element, items > 0 ? items : n, groups) : make.absent();
  make.count(n);
  make.result(types.result, {m, width});
}

void interval_reduce(Garbage& make) {
  const OperatorTypes types = operator_types(make, 9);
  const DType index = make.index_type();
  const int64_t n = make.length(), k = make.length(), width = make.draw(0, 9) == 0 ? 70 : make.draw(0, 4);
  make.limit(1 << 13);
  make.rows(types.element, n, width);
  make.indices(index, k, n);
  make.indices(index, k, n);
  make.count(n);
  make.result(types.result, {k, width});
}

void run_heads(Garbage& make) {
  const DType dtype = make.key_type(), index = make.index_type();
  const int64_t n = make.length(), size = make.length();
  make.keys(dtype, n, false);
  make.count(n);
  make.result(index, {size});
  make.result(dtype, {size});
  make.result(index, {});
  make.result(index, {});
}

void scan(Garbage& make) {
  const OperatorTypes types = operator_types(make, 8);
  const bool gives_index = types.result != types.element || types.result == DType::s32 || types.result == DType::s64;
  const int64_t n = make.length();
  make.attribute("exclusive", 0, 1);
  make.attribute("reverse", 0, 1);
  make.keys(types.element, n, false);
  const bool has_heads = make.flip();
  has_heads ? make.indices(make.length(), n) : make.absent();
  make.count(n);
  !has_heads && !gives_index && make.flip() ? make.keys(types.element, 1, false) : make.absent();
  make.result(types.result, {n});
  if (make.attribute("total", 0, 1)) make.result(types.result, {});
}

void scan_rows(Garbage& make) {
  const OperatorTypes types = operator_types(make, 8);
  const int64_t n = make.length(), width = make.draw(0, 70);
  make.attribute("exclusive", 0, 1);
  make.attribute("reverse", 0, 1);
  make.into(types.element, n, width);
  make.flip() ? make.indices(make.length(), n) : make.absent();
  make.count(n);
  make.result(types.result, {n, width});
  if (make.attribute("total", 0, 1)) make.result(types.result, {width});
}

void select(Garbage& make) {
  const bool indices = make.attribute("indices", 0, 1), partition = make.attribute("partition", 0, 1);
  const DType dtype = row_type(make);
  const int64_t width = elements(make), n = make.length(), size = partition ? n : make.length();
  make.rows(dtype, n, width);
  make.keys(DType::boolean, n);
  make.count(n);
  make.keys(dtype, 1);
  indices ? make.result(make.index_type(), {size}) : make.result(dtype, {size, width});
  make.result(make.index_type(), {});
}

void segmented_reduce(Garbage& make) {
  const OperatorTypes types = reduction_types(make);
  const int64_t n = make.length(), m = make.length();
  make.keys(types.element, n, false);
  make.indices(m, n);
  make.count(n);
  make.result(types.result, {m});
}

void segmented_order_statistics(Garbage& make) {
  const DType dtype = make.key_type();
  const int64_t n = make.length(), m = make.length(), ranks = make.one_of<int64_t>({0, 1, 3, 20});
  make.keys(dtype, n);
  make.indices(m, n);
  make.indices(m, n);
  make.index_rows(ranks, m, n);
  make.count(n);
  make.result(dtype, {ranks, m});
}

void segmented_top_k(Garbage& make) {
  const DType dtype = make.key_type();
  const int64_t n = make.length(), m = make.length(), k = make.attribute("k", 0, make.flip() ? 9 : 32);
  make.attribute("largest", 0, 1);
  make.keys(dtype, n);
  make.indices(m, n);
  make.indices(m, n);
  make.count(n);
  make.result(dtype, {m, k});
  make.result(make.index_type(), {m, k});
}

void segmented_search(Garbage& make) {
  const DType dtype = make.key_type(), index = make.index_type();
  const int64_t n = make.length(), size = make.length(), segments = make.length();
  make.attribute("right", 0, 1);
  make.attribute("exact", 0, 1);
  make.keys(dtype, n);
  make.flip() ? make.absent() : make.indices(index, n, segments);
  make.keys(dtype, size);
  make.indices(index, segments, size);
  make.flip() ? make.absent() : make.indices(index, segments, size);
  make.count(n);
  make.count(size);
  make.result(index, {n});
}

void segmented_shift(Garbage& make) {
  const DType dtype = row_type(make);
  const int64_t width = elements(make), n = make.length();
  make.rows(dtype, n, width);
  make.indices(make.length(), n);
  make.indices(1, n);
  make.count(n);
  make.keys(dtype, 1);
  make.result(dtype, {n, width});
}

void segmented_sort(Garbage& make) {
  const DType dtype = make.key_type(), payload = make.payload_type();
  const int64_t n = make.length();
  make.attribute("descending", 0, 1);
  const auto mode = static_cast<PayloadMode>(make.attribute("payload", 0, 2));
  make.keys(dtype, n, false);
  make.attribute("bits", 1, 8 * byte_width(dtype));
  const bool whole = make.attribute("method", 0, 2) != 0;
  const bool flags = make.flip();
  flags || whole ? make.absent() : make.indices(make.length(), n);
  flags && !whole ? make.flags(n) : make.absent();
  make.count(n);
  mode == PayloadMode::kGiven ? make.keys(payload, n, false) : make.absent();
  make.result(dtype, {n});
  if (mode != PayloadMode::kNone) make.result(payload, {n});
}

void sets(Garbage& make) {
  const DType dtype = make.key_type(), payload = make.payload_type();
  const int64_t n = make.length(), m = make.length(), size = 2 * make.length();
  make.attribute("kind", 0, 3);
  make.attribute("duplicates", 0, 1);
  const auto mode = static_cast<PayloadMode>(make.attribute("payload", 0, 2));
  make.keys(dtype, n);
  make.keys(dtype, m);
  make.count(n);
  make.count(m);
  make.keys(dtype, 1);
  if (mode == PayloadMode::kGiven) {
    make.keys(payload, n);
    make.keys(payload, m);
    make.keys(payload, 1);
  } else {
    for (int i = 0; i < 3; ++i) make.absent();
  }
  make.result(dtype, {size});
  if (mode != PayloadMode::kNone) make.result(payload, {size});
  make.result(make.index_type(), {});
}

void sorted_match(Garbage& make) {
  const DType dtype = make.key_type(), index = make.index_type();
  const int64_t n = make.length(), m = make.length();
  make.attribute("right", 0, 1);
  make.keys(dtype, n);
  make.keys(dtype, m);
  make.count(n);
  make.count(m);
  make.result(index, {n});
  make.result(index, {m});
  make.result(DType::boolean, {n});
  make.result(DType::boolean, {m});
  make.result(index, {});
  make.result(index, {});
}

void sorted_search(Garbage& make) {
  const DType dtype = make.key_type();
  const int64_t n = make.flip() ? make.length() : make.length() / 64, m = make.length();
  make.attribute("right", 0, 1);
  make.keys(dtype, n);
  make.keys(dtype, m);
  make.count(n);
  make.count(m);
  make.result(make.index_type(), {n});
}

void top_k(Garbage& make) {
  const DType dtype = make.key_type();
  const int64_t n = make.length(), k = make.attribute("k", 0, make.flip() ? 9 : n);
  make.attribute("largest", 0, 1);
  make.keys(dtype, n, false);
  make.count(n);
  make.result(dtype, {k});
  make.result(make.index_type(), {k});
}

void top_k_candidates(Garbage& make) {
  const DType dtype = make.key_type();
  const int64_t n = make.length(), k = make.attribute("k", 0, n), room = make.attribute("room", k, n);
  make.attribute("largest", 0, 1);
  make.keys(dtype, n, false);
  make.count(n);
  make.result(dtype, {room});
  make.result(make.index_type(), {room});
  make.result(make.index_type(), {1});
}

void sample_top_p(Garbage& make) {
  const DType dtype = make.one_of({DType::f16, DType::bf16, DType::f32});
  make.keys(dtype, make.length(), false);
  for (int i = 0; i < 4; ++i) make.keys(DType::f32, 1);
  make.result(make.index_type(), {1});
}

void segmented_softmax(Garbage& make) {
  const DType dtype = make.one_of({DType::f16, DType::bf16, DType::f32, DType::f64});
  const int64_t width = make.draw(0, 9) == 0 ? 1030 : make.draw(0, 40);
  make.limit(width > 40 ? 300 : 1 << 14);
  const int64_t n = make.length(), rule = make.attribute("rule", 0, 4);
  make.into(dtype, n, width);
  rule >= 2 ? make.into(dtype, n, width) : make.absent();
  make.indices(make.length(), n);
  make.count(n);
  make.result(dtype, {n, width});
}

int64_t of_function(Garbage& make, bool has_heads) {
  const int64_t n = make.length(), m = has_heads ? make.length() : 0;
  for (const char* name : {"leaves", "results"}) make.attribute(name, 1, 1);
  for (const char* name : {"item_bytes", "widest", "packed", "state_bytes", "result_bytes"}) make.attribute(name, 4, 4);
  make.attribute("captures", 0, 0);
  make.keys(DType::f32, n, false);
  make.attribute("batch_rank", make.batch_rank(), make.batch_rank());
  has_heads ? make.indices(m, n) : make.absent();
  make.count(n);
  return has_heads ? m : n;
}

void reduce_by_function(Garbage& make) {
  of_function(make, false);
  make.result(DType::f32, {});
}

void segmented_reduce_by_function(Garbage& make) { make.result(DType::f32, {of_function(make, true)}); }

void scan_by_function(Garbage& make) {
  for (const char* name : {"exclusive", "reverse", "segmented"}) make.attribute(name, 0, 1);
  make.attribute("width", 0, 0);  // items of one number
  make.result(DType::f32, {of_function(make, false)});
  if (make.attribute("total", 0, 1)) make.result(DType::f32, {});
}

void sort_by_function(Garbage& make) {
  const int64_t n = make.length(), words = make.one_of<int64_t>({1, 2, 4});
  make.attribute("word_bytes", 4 * words, 4 * words);
  make.attribute("captures", 0, 0);
  words == 1 ? make.keys(DType::u32, n, false) : make.into(DType::u32, n, words);
  make.indices(make.length(), n);
  make.absent();
  make.count(n);
  words == 1 ? make.result(DType::u32, {n}) : make.result(DType::u32, {n, words});
  make.attribute("payload", 0, 0);
}

void sort_indices_by_function(Garbage& make) {
  const int64_t n = make.length();
  make.attribute("leaves", 1, 1);
  make.attribute("captures", 0, 0);
  make.attribute("item_bytes", 8, 8);
  make.keys(DType::f64, n, false);
  make.indices(make.length(), n);
  make.absent();
  make.count(n);
  make.result(DType::s32, {n});
}

}  // namespace garbage

// Multiplies a number of calls by $MGPU_CALLS.
int many(int calls) {
  const char* const times = std::getenv("MGPU_CALLS");
  return calls * (times ? std::atoi(times) : 1);
}

void survives(const char* name, void (*function)(const Call&, cpu::Executor&), void (*make)(Garbage&)) {
  constexpr int kCalls = kThreadSanitizer ? 200 : 500;
  std::printf("  %s: %d calls\n", name, kCalls);
  std::fflush(stdout);
  ThreadPool pool(3);
  for (int seed = 0; seed < kCalls; ++seed) {
    Garbage call(seed);
    make(call);
    call.run(name, function, pool);
  }
}

}  // namespace

TEST(every_handler_survives_garbage) {
#define MGPU_SURVIVES(name) survives(#name, &cpu::name, &garbage::name);
  MGPU_OPERATIONS(MGPU_SURVIVES)
#undef MGPU_SURVIVES
}

namespace {

// Makes valid calls, and then spoils them in one or several ways. `function` is null if the operation has no function
// on the CPU.
void refuses(const char* name, void (*function)(const Call&, cpu::Executor&), int64_t (*workspace)(const Call&),
             void (*make)(Garbage&)) {
  ThreadPool pool(3);
  // CUDA's handlers get the call with scratch memory as one more result, or erroneously without.
  const auto on_cuda = [&](bool has_scratch) {
    return [=](Call call) {
      if (has_scratch) call.results.push_back({nullptr, DType::u8, {0}});
      take_workspace(call);
      workspace(call);
    };
  };
  const auto run = [&](const Call& call) { function ? function(call, pool) : void(); };
  int64_t taken = 0, refused = 0;
  for (int seed = 0; seed < many(kThreadSanitizer ? 50 : 300); ++seed) {
    Garbage call(seed);
    call.limit(kThreadSanitizer ? 64 : 1 << 9);  // see interval_move
    make(call);
    CHECK(call.is_taken(name, workspace));
    CHECK(call.is_taken(name, on_cuda(true)) && !call.is_taken(name, on_cuda(false)));
    for (int64_t times = call.draw(1, 3); times > 0; --times) call.spoil();
    ++(call.is_taken(name, run) ? taken : refused);
    call.is_taken(name, workspace);
    call.stretch();
    call.is_taken(name, workspace);
  }
  std::printf("  %s: %d taken, %d refused\n", name, static_cast<int>(taken), static_cast<int>(refused));
  CHECK(!function || refused > taken);
}

int64_t failed_allocations = 0;

void tells_of_failed_allocations(const char* name, void (*function)(const Call&, cpu::Executor&),
                                 void (*make)(Garbage&)) {
  ThreadPool pool(3);
  SerialExecutor serial;
  const auto limit = [](int seed) { return int64_t{1} << (seed % 4 == 0 && !kThreadSanitizer ? 16 : 6); };
  const auto outcome = [&](int seed) {
    Garbage call(seed);
    call.limit(limit(seed));
    make(call);
    call.run(name, function, serial);
    std::vector<std::vector<char>> all;
    for (const Array& array : call.results()) all.emplace_back(array.as<char>(), array.as<char>() + array.bytes());
    return all;
  };
  for (int seed = 0; seed < many(kThreadSanitizer ? 4 : 24); ++seed) {
    const auto expected = outcome(seed);
    bool failed = true;
    for (int64_t k = 1; failed; k += 1 + k / 8) {
      Garbage call(seed);
      call.limit(limit(seed));
      make(call);
      failed = call.fails_at(k, name, function, pool);
      failed_allocations += failed;
      if (k % 4 == 1) CHECK(outcome(seed) == expected);
    }
  }
}

}  // namespace

TEST(every_handler_refuses_what_it_does_not_take) {
#define MGPU_REFUSES(name) refuses(#name, &cpu::name, &workspace::name, &garbage::name);
  MGPU_OPERATIONS(MGPU_REFUSES)
#undef MGPU_REFUSES
#define MGPU_REFUSES(name) refuses(#name, nullptr, &workspace::name, &garbage::name);
  MGPU_CUDA_OPERATIONS(MGPU_REFUSES)
  MGPU_FUNCTION_OPERATIONS(MGPU_REFUSES)
#undef MGPU_REFUSES
}

TEST(every_handler_tells_of_failed_allocations_and_works_again) {
#define MGPU_TELLS(name) tells_of_failed_allocations(#name, &cpu::name, &garbage::name);
  MGPU_OPERATIONS(MGPU_TELLS)
#undef MGPU_TELLS
  std::printf("  %d allocations failed\n", static_cast<int>(failed_allocations));
  CHECK(kThreadSanitizer || failed_allocations > 2000);
}

TEST(objects_of_garbage_offsets_are_objects) {
  SerialExecutor executor;
  for (int seed = 0; seed < 2000; ++seed) {
    Garbage call(seed);
    call.limit(512);
    const int64_t size = call.length(), objects = call.length();
    call.indices(objects, size);
    call.count(size);
    call.attribute("return_rank", 0, 0);
    call.result(DType::s32, {size});
    call.run("load_balance_search", &cpu::load_balance_search, executor);
    const Array& found = call.results()[0];
    for (int64_t i = 0; i < found.size(); ++i) CHECK(-1 <= found.as<int32_t>()[i] && found.as<int32_t>()[i] < objects);
  }
}

}  // namespace mgpu::testing
