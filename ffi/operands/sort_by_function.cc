#include "operands/sort_by_function.h"

#include "call.h"
#include "operations.h"
#include "workspace.h"

namespace mgpu {

namespace {

constexpr size_t kOwnOperands = 4;  // before what the function has captured

// The attributes of the same sort in ascending order.
struct SortAttributes final : Attributes {
  const Attributes& own;
  int64_t bits;

  SortAttributes(const Attributes& own, int64_t bits) : own(own), bits(bits) {}
  int64_t operator[](std::string_view name) const override {
    if (name == "payload") return own[name];
    return name == "bits" ? bits : 0;
  }
};

// Rows of two words of 4 bytes as words of 8.
Array as_words(const Array& array, int64_t word_bytes) {
  if (word_bytes != 8) return array;
  Array words{array.data, DType::u64, array.dimensions};
  words.dimensions.pop_back();
  return words;
}

SegmentedSortOperands sort_operands(const Call& call) {
  const int64_t word_bytes = call.attributes["word_bytes"];
  call.expect(word_bytes == 1 || word_bytes == 2 || word_bytes == 4 || word_bytes == 8,
              "expected words of 1 to 8 bytes");
  const auto captured = static_cast<size_t>(call.attributes["captures"]);
  call.expect(captured <= kMostCaptures && call.operands.size() == kOwnOperands + captured,
              "expected keys, heads, flags, count and captures");
  const Array& keys = call.operands[0];
  call.expect(byte_width(keys.dtype) == (word_bytes == 8 ? 4 : word_bytes), "keys: expected words of that width");
  call.expect(word_bytes != 8 || (keys.rank() >= 2 && keys.dimensions.back() == 2), "keys: expected pairs of words");
  const SortAttributes attributes(call.attributes, 8 * word_bytes);
  Call sort{call.operation, {call.operands.begin(), call.operands.begin() + kOwnOperands}, call.results, attributes};
  sort.operands[0] = as_words(sort.operands[0], word_bytes);
  sort.operands.push_back({nullptr, DType::s32, {0}});  // no values
  sort.results[0] = as_words(sort.results.at(0), word_bytes);
  call.expect(call.attributes["payload"] != static_cast<int64_t>(PayloadMode::kGiven), "payload: expected none");
  SegmentedSortOperands operands(sort);
  call.expect(operands.payload_width == 0 || operands.payload_width == 4, "values: expected indices of 4 bytes");
  operands.within_segments = true;
  return operands;
}

}  // namespace

SortFunctionOperands::SortFunctionOperands(const Call& call) : sort(sort_operands(call)) {
  for (size_t i = 0; i + kOwnOperands < call.operands.size(); ++i) {
    captures.arrays[i] = call.operands[kOwnOperands + i].data;
  }
}

int64_t workspace::sort_by_function(const Call& call) { return layout_bytes(SortFunctionOperands(call).sort); }

}  // namespace mgpu
