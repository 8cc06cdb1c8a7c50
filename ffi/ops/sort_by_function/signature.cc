#include "jit/function_data.h"
#include "ops/sort_by_function/operands.h"
#include "runtime/call.h"

namespace mgpu {

namespace {

constexpr size_t kSegmentOperands = 3;  // heads, flags and count

// A sort by a function is a segmented_sort that merges in ascending order of its words.
struct SortAttributes final : Attributes {
  int64_t payload, bits;

  SortAttributes(int64_t payload, int64_t bits) : payload(payload), bits(bits) {}
  int64_t operator[](std::string_view name) const override {
    if (name == "payload") return payload;
    return name == "bits" ? bits : 0;
  }
};

// Heads, flags and count are the operands from `first` on.
SegmentedSortOperands sort_of_words(const Call& call, const Array& keys, const Array& sorted_keys, size_t first,
                                    int64_t payload) {
  const SortAttributes attributes(payload, 8 * byte_width(keys.dtype));
  Call sort{call.operation, {keys}, call.results, attributes};
  const auto given = call.operands.begin() + first;
  sort.operands.insert(sort.operands.end(), given, given + kSegmentOperands);
  sort.operands.push_back({nullptr, DType::s32, {0}});  // no values
  sort.results[0] = sorted_keys;
  SegmentedSortOperands operands(sort);
  call.expect(operands.payload_width == 0 || operands.payload_width == 4, "values: expected indices of 4 bytes");
  return operands;
}

Captures captured_from(const Call& call, size_t first) {
  Captures captures{};
  for (size_t i = first; i < call.operands.size(); ++i) captures.arrays[i - first] = call.operands[i].data;
  return captures;
}

// Rows of two or four words of 4 bytes become words of 8 or 16 bytes.
Array as_words(const Array& array, int64_t word_bytes) {
  if (word_bytes <= 4) return array;
  Array words{array.data, word_bytes == 8 ? DType::u64 : DType::c128, array.dimensions};
  words.dimensions.pop_back();
  return words;
}

SegmentedSortOperands word_operands(const Call& call) {
  const int64_t word_bytes = call.attributes["word_bytes"];
  call.expect(word_bytes == 1 || word_bytes == 2 || word_bytes == 4 || word_bytes == 8 || word_bytes == 16,
              "expected words of 1 to 16 bytes");
  const auto captured = static_cast<size_t>(call.attributes["captures"]);
  call.expect(captured <= kMaxCaptures && call.operands.size() == 1 + kSegmentOperands + captured,
              "expected keys, heads, flags, count and captures");
  const Array& keys = call.operands[0];
  call.expect(byte_width(keys.dtype) == minimum<int64_t>(word_bytes, 4), "keys: expected words of that width");
  call.expect(word_bytes <= 4 || (keys.rank() >= 2 && 4 * keys.dimensions.back() == word_bytes),
              "keys: expected rows of words of 4 bytes");
  if (const FunctionData* const function = call.function) {
    call.expect(function->is_order && function->shape().packed <= word_bytes, "expected an order of such words");
    function->expect_captures(call, 1 + kSegmentOperands, captured);
  }
  call.expect(!call.results.empty(), "expected more results");
  const Array& sorted = call.results[0];
  call.expect(sorted.dtype == keys.dtype && sorted.dimensions == keys.dimensions,
              "result: expected the type and shape of the keys");
  const int64_t payload = call.attributes["payload"];
  call.expect(payload != static_cast<int64_t>(PayloadMode::kGiven), "payload: expected none");
  return sort_of_words(call, as_words(keys, word_bytes), as_words(sorted, word_bytes), 1, payload);
}

SegmentedSortOperands index_operands(const Call& call) {
  const auto leaves = static_cast<size_t>(call.attributes["leaves"]);
  const auto captured = static_cast<size_t>(call.attributes["captures"]);
  call.expect(leaves >= 1 && leaves <= kMaxLeaves && captured <= kMaxCaptures, "expected 1 to 16 leaves and captures");
  call.expect(call.operands.size() == leaves + kSegmentOperands + captured,
              "expected leaves, heads, flags, count and captures");
  call.expect(!call.results.empty(), "expected more results");
  const Array& indices = call.results[0];
  call.expect(indices.dtype == DType::s32, "indices: expected int32");
  call.expect(indices.size() < int64_t{1} << 32, "indices: expected fewer than 2^32 items");
  int64_t bytes = 0;
  for (size_t i = 0; i < leaves; ++i) bytes += call.operands[i].bytes();
  const int64_t items = indices.size(), item_bytes = call.attributes["item_bytes"];
  call.expect(items == 0 ? bytes == 0 : bytes % items == 0 && bytes / items == item_bytes,
              "expected leaves of one length");
  if (const FunctionData* const function = call.function) {
    call.expect(function->is_order && leaves == function->item.size(), "expected an order of such items");
    function->expect_leaves(call, indices.rank() - 1, indices.size());
    function->expect_captures(call, leaves + kSegmentOperands, captured);
  }
  const Array positions{nullptr, DType::u32, indices.dimensions};
  return sort_of_words(call, positions, {indices.data, DType::u32, indices.dimensions}, leaves,
                       static_cast<int64_t>(PayloadMode::kNone));
}

}  // namespace

std::string word_type(int64_t word_bytes) {
  return word_bytes == 16 ? "unsigned __int128" : "uint" + std::to_string(8 * word_bytes) + "_t";
}

SortFunctionOperands::SortFunctionOperands(const Call& call)
    : sort(word_operands(call)), captures(captured_from(call, 1 + kSegmentOperands)) {}

SortIndicesFunctionOperands::SortIndicesFunctionOperands(const Call& call) : sort(index_operands(call)) {
  const auto count = static_cast<size_t>(call.attributes["leaves"]);
  for (size_t i = 0; i < count; ++i) leaves[i] = call.operands[i].data;
  captures = captured_from(call, count + kSegmentOperands);
}

}  // namespace mgpu
