// A call's function is accepted only with the arrays that it reads and writes. Whatever changes in its lines, reading
// them ends with an error or with a function.
#include "jit/function_data.h"

#include <functional>
#include <map>
#include <random>

#include "check.h"
#include "ops/custom_operator/operands.h"
#include "ops/sort_by_function/operands.h"

namespace mgpu::testing {

namespace {

constexpr std::string_view kOperator =
    "item f32 1 i32 2\n"
    "element u8 3\n"
    "position i32\n"
    "result f64 1\n"
    "flags\n"
    "function combine\n"
    "v0 f32 add a0.0 b0.0\n"
    "give v0 a1.0 b1.1\n"
    "function dead\n"
    "give f64:0\n"
    "function nothing\n"
    "v0 f64 load 1 20\n"
    "give v0\n"
    "function load\n"
    "v0 i64 nearest_place position 10\n"
    "v1 f32 load 0 5 v0 3\n"
    "give v1 position position\n"
    "function finish\n"
    "v0 f64 convert x0.0\n"
    "give v0";
constexpr std::string_view kOrder =
    "item i32 1 u16 2\n"
    "function less called\n"
    "v0 bool variable\n"
    "switch a0.0 2\n"
    "case\n"
    "v1 bool lt a0.0 b0.0\n"
    "set v0 v1\n"
    "case\n"
    "v2 u16 load 0 7\n"
    "v3 bool lt a1.1 v2\n"
    "set v0 v3\n"
    "end\n"
    "give v0";

struct MapAttributes final : Attributes {
  int64_t operator[](std::string_view name) const override { return map.at(std::string(name)); }
  std::map<std::string, int64_t> map;
};

Array array(DType dtype, std::vector<int64_t> dimensions) {
  static char memory[64];
  return {memory, dtype, std::move(dimensions)};
}

bool is_taken(const std::function<void()>& read) {
  try {
    read();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

struct Example {
  MapAttributes attributes;
  std::vector<Array> operands, results;
  const FunctionData& function;
  std::function<void(const Call&)> read;

  bool is_taken() const {
    const Call call{"example", operands, results, attributes, &function};
    return testing::is_taken([&] { read(call); });
  }
  // Changes the attributes, the first operands, which the function specifies, and the results; each change is refused.
  void expect_taken(size_t checked_operands, const std::vector<const char*>& checked_attributes) {
    CHECK(is_taken());
    for (const char* name : checked_attributes) {
      for (const int64_t step : {-1, 1}) {
        attributes.map[name] += step;
        CHECK(!is_taken());
        attributes.map[name] -= step;
      }
    }
    const auto expect_refused = [&](Array& one) {
      const Array before = one;
      one.dtype = before.dtype == DType::s8 ? DType::u8 : DType::s8;
      CHECK(!is_taken());
      one = before;
      --one.dimensions.back();
      CHECK(!is_taken());
      one.dimensions.clear();
      CHECK(!is_taken());
      one = before;
    };
    for (size_t i = 0; i < checked_operands; ++i) expect_refused(operands[i]);
    for (Array& result : results) expect_refused(result);
    for (std::vector<Array>* const arrays : {&operands, &results}) {
      const Array last = arrays->back();
      arrays->pop_back();
      CHECK(!is_taken());
      arrays->push_back(last);
    }
    CHECK(is_taken());
  }
};

}  // namespace

TEST(functions_are_taken_with_their_arrays) {
  const FunctionData& function = function_of(kOperator);
  CHECK(&function == &function_of(kOperator));
  CHECK(function.shape().size == 12 && function.shape().widest == 3 && function.shape().packed == 3);
  CHECK(function.state_bytes() == 16 && !function.is_order && !function.has_neutral);
  CHECK(function.captures[0].elements == 5 + 9 * 3 + 1 && function.captures[1].elements == 21);
  Example example{{}, {}, {}, function, [](const Call& call) { ReduceFunctionOperands{call}; }};
  example.attributes.map = {{"leaves", 1}, {"captures", 2}, {"batch_rank", 1},   {"item_bytes", 12}, {"widest", 3},
                            {"packed", 3}, {"results", 1},  {"result_bytes", 8}, {"state_bytes", 16}};
  example.operands = {array(DType::u8, {2, 100, 3}), array(DType::f32, {33}), array(DType::f64, {21}),
                      array(DType::s32, {0}), array(DType::s32, {0})};
  example.results = {array(DType::f64, {2})};
  example.expect_taken(
      3, {"leaves", "captures", "item_bytes", "widest", "packed", "results", "result_bytes", "state_bytes"});
  example.operands[1].dimensions = {5, 7};  // more than the function reads
  CHECK(example.is_taken());
}

TEST(orders_are_taken_with_their_arrays) {
  const FunctionData& order = function_of(kOrder);
  CHECK(order.is_order && order.captures.size() == 1 && order.captures[0].elements == 8);
  Example words{{}, {}, {}, order, [](const Call& call) { SortFunctionOperands{call}; }};
  words.attributes.map = {{"captures", 1}, {"word_bytes", 8}, {"payload", 0}};
  words.operands = {array(DType::u32, {50, 2}), array(DType::s32, {0}), array(DType::boolean, {0}),
                    array(DType::s32, {0}), array(DType::u16, {8})};
  words.results = {array(DType::u32, {50, 2})};
  CHECK(words.is_taken());
  words.operands[4].dtype = DType::u32;
  CHECK(!words.is_taken());
  words.operands[4] = array(DType::u16, {7});
  CHECK(!words.is_taken());
  words.operands[4] = array(DType::u16, {8});
  words.attributes.map["word_bytes"] = 4;  // too few for an item
  words.operands[0] = array(DType::u32, {50});
  words.results[0] = words.operands[0];
  CHECK(!words.is_taken());

  Example indices{{}, {}, {}, order, [](const Call& call) { SortIndicesFunctionOperands{call}; }};
  indices.attributes.map = {{"captures", 1}, {"leaves", 2}, {"item_bytes", 8}};
  indices.operands = {array(DType::s32, {3, 50}), array(DType::u16, {3, 50, 2}), array(DType::s32, {0}),
                      array(DType::boolean, {0}), array(DType::s32, {0}),        array(DType::u16, {8})};
  indices.results = {array(DType::s32, {3, 50})};
  indices.expect_taken(2, {"captures", "leaves", "item_bytes"});
  indices.operands[0].dimensions = {3, 60};
  indices.operands[1].dimensions = {3, 40, 2};
  CHECK(!indices.is_taken());
}

TEST(an_order_is_no_operator) {
  Example example{{}, {}, {}, function_of(kOrder), [](const Call& call) { ReduceFunctionOperands{call}; }};
  example.attributes.map = {{"leaves", 2}, {"captures", 1}, {"batch_rank", 0},   {"item_bytes", 8},  {"widest", 4},
                            {"packed", 8}, {"results", 2},  {"result_bytes", 8}, {"state_bytes", 12}};
  example.operands = {array(DType::s32, {9}), array(DType::u16, {9, 2}), array(DType::u16, {8}), array(DType::s32, {0}),
                      array(DType::s32, {0})};
  example.results = {array(DType::s32, {}), array(DType::u16, {2})};
  CHECK(!example.is_taken());
}

TEST(functions_of_any_words_end) {
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  std::vector<std::string> words = {"",     "v0",     "v1",     "v99999999999999999999",
                                    "a0.0", "b1.1",   "x0.0",   "bool:1",
                                    "f32:", "i8",     "u64",    "1099511627776",
                                    "0",    "-1",     "give",   "case",
                                    "end",  "set",    "loop",   "while",
                                    "load", "switch", "repeat", "pick"};
  int taken = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string data(below(2) ? kOperator : kOrder);
    for (size_t changes = 1 + below(3); changes > 0; --changes) {
      const size_t at = below(data.size() + 1), end = std::min(data.find_first_of(" \n", at), data.size());
      switch (below(4)) {
        case 0: data.replace(at, end - at, words[below(words.size())]); break;
        case 1: data.insert(at, data.substr(below(data.size()), below(40))); break;
        case 2: data.erase(at, below(30)); break;
        default:
          if (at < data.size()) data[at] = static_cast<char>(below(256));
      }
      if (data.empty()) data = "item";
    }
    taken += is_taken([&] { FunctionData{data}; });
  }
  CHECK(taken > 100 && taken < 10000);
}

}  // namespace mgpu::testing
