#include "runtime/signature.h"

#include "ops/common/operators.h"

namespace mgpu {

namespace {

std::string text_of(std::string_view text) { return std::string(text); }

class Check {
 public:
  Check(const Call& call, const Signature& signature, const Array* const* results)
      : call_(call), signature_(signature), results_(results) {
    lengths_.reserve(8);
    for (size_t i = 0; i < named_count(signature.results) && rows_ < 0; ++i) {
      const int own = signature.results[i].rank;
      if (results[i] && own >= 0 && results[i]->rank() >= own) rows_ = Call::batch(*results[i], own);
    }
  }

  void operand(const Argument& argument, const Array& array) {
    if (argument.may_be_absent && array.rank() > 0 && array.dimensions.back() == 0) return;
    type(argument, array, true);
    shape(argument, array, argument.has_batch);
  }
  void result(const Argument& argument, const Array& array) {
    type(argument, array, false);
    shape(argument, array, true);
  }

 private:
  [[noreturn]] void fail(const Argument& argument, const std::string& expected, const std::string& got) const {
    call_.fail(text_of(argument.name) + ": expected " + expected + ", got " + got);
  }

  const Array* named(const Argument (&arguments)[8], std::string_view name, bool of_results) const {
    for (size_t i = 0; i < named_count(arguments); ++i) {
      if (arguments[i].name == name) return of_results ? results_[i] : &call_.operands[i];
    }
    return nullptr;
  }

  // The array that gives the type. For an operand, it is looked up first among the results; for a result, first among
  // the operands.
  const Array& like(const Argument& argument, bool is_operand) const {
    const Array* const of_results = named(signature_.results, argument.like, true);
    const Array* const of_operands = named(signature_.operands, argument.like, false);
    const Array* const found =
        is_operand ? (of_results ? of_results : of_operands) : (of_operands ? of_operands : of_results);
    if (!found) call_.fail("not in the signature: " + text_of(argument.like));
    return *found;
  }

  void type(const Argument& argument, const Array& array, bool is_operand) const {
    const auto expect = [&](bool holds, std::string_view expected) {
      if (!holds) fail(argument, text_of(expected), text_of(dtype_name(array.dtype)));
    };
    const auto expect_same = [&](DType dtype) { expect(array.dtype == dtype, dtype_name(dtype)); };
    const auto expect_index = [&] { expect(array.dtype == DType::s32 || array.dtype == DType::s64, "int32 or int64"); };
    switch (argument.type) {
      case TypeRule::kAny: return;
      case TypeRule::kKey: return expect(is_key(array.dtype), "a type that has an order");
      case TypeRule::kIndex: return expect_index();
      case TypeRule::kBool: return expect_same(DType::boolean);
      case TypeRule::kS32: return expect_same(DType::s32);
      case TypeRule::kU32: return expect_same(DType::u32);
      case TypeRule::kLike: return expect_same(like(argument, is_operand).dtype);
      case TypeRule::kReduced: break;
    }
    const auto kind = static_cast<OperatorKind>(call_.attributes["op"]);
    bool wide = false;
    for (const Signature::Attribute& attribute : signature_.attributes) {
      wide = wide || (attribute.name == "wide" && call_.attributes["wide"] != 0);
    }
    if (wide) {  // dispatch_reduced_arithmetic checks the result's type
      return call_.expect(kind == OperatorKind::kAdd || kind == OperatorKind::kMul, "wide: expected a sum or product");
    }
    if (gives_index(kind)) return expect_index();
    expect_same(named(signature_.operands, "x", false)->dtype);
  }

  void shape(const Argument& argument, const Array& array, bool has_batch) {
    const int own = argument.rank, rank = array.rank();
    if (own < 0) return;
    if (rank < own) fail(argument, "rank " + std::to_string(own) + " or more", "rank " + std::to_string(rank));
    for (int axis = 0; axis < own; ++axis) {
      const int64_t size = array.dimensions[rank - own + axis], expected = length(argument.axes[axis], size);
      if (size != expected) {
        fail(argument, std::to_string(expected) + " for " + text_of(argument.axes[axis]), std::to_string(size));
      }
    }
    if (!has_batch && rank == own) return;
    const int64_t rows = Call::batch(array, own);
    if (rows != rows_) fail(argument, std::to_string(rows_) + " in the batch", std::to_string(rows));
  }

  // The first axis with a name sets the length of all axes with this name.
  int64_t length(std::string_view axis, int64_t size) {
    if (axis == "1") return 1;
    for (const Signature::Attribute& attribute : signature_.attributes) {
      if (attribute.name == axis) return call_.attributes[axis];
    }
    for (const auto& [name, bound] : lengths_) {
      if (name == axis) return bound;
    }
    lengths_.emplace_back(axis, size);
    return size;
  }

  const Call& call_;
  const Signature& signature_;
  const Array* const* results_;
  int64_t rows_ = -1;
  std::vector<std::pair<std::string_view, int64_t>> lengths_;
};

}  // namespace

void expect_sizes(const Call& call) {
  for (const auto* arrays : {&call.operands, &call.results}) {
    for (const Array& array : *arrays) {
      int64_t bytes = byte_width(array.dtype);
      for (const int64_t size : array.dimensions) {
        // After a size of 0, the other sizes are checked too: rows of an empty batch must not be too large.
        call.expect(size >= 0 && (size == 0 || bytes < kMaxArrayBytes / size),
                    "expected arrays of less than 2^47 bytes");
        bytes *= maximum<int64_t>(size, 1);
      }
    }
  }
}

Arguments::Arguments(const Call& call, const Signature& signature) : call_(call), signature_(signature) {
  const auto expect_count = [&](const char* what, size_t expected, size_t got) {
    call.fail("expected " + std::to_string(expected) + what + std::to_string(got));
  };
  for (const Signature::Attribute& attribute : signature.attributes) {
    if (attribute.name.empty() || attribute.values == &kNumber) continue;
    const int64_t value = call.attributes[attribute.name];
    const int64_t most = attribute.values ? static_cast<int64_t>(named_count(attribute.values->values)) - 1 : 1;
    if (value < 0 || value > most) {
      call.fail(text_of(attribute.name) + ": expected 0 to " + std::to_string(most) + ", got " + std::to_string(value));
    }
  }
  const size_t operands = named_count(signature.operands), results = named_count(signature.results);
  if (call.operands.size() != operands) expect_count(" operands, got ", operands, call.operands.size());
  size_t given = 0;
  for (size_t i = 0; i < results; ++i) {
    if (!holds(signature.results[i])) continue;
    if (given < call.results.size()) results_[i] = &call.results[given];
    ++given;
  }
  if (call.results.size() != given) expect_count(" results, got ", given, call.results.size());

  Check check(call, signature, results_);
  for (size_t i = 0; i < operands; ++i) {
    if (holds(signature.operands[i])) check.operand(signature.operands[i], call.operands[i]);
  }
  for (size_t i = 0; i < results; ++i) {
    if (results_[i]) check.result(signature.results[i], *results_[i]);
  }
}

}  // namespace mgpu
