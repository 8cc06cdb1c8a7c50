// The operands, results and attributes of an operation. Python compares its own names with these at import. Arguments
// checks a call against the types, shapes and ranges given here, before it gives any part of the call by name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "runtime/call.h"
#include "runtime/plan.h"

namespace mgpu {

struct Enumeration {
  std::string_view name;
  std::string_view values[16];  // the names; empty strings follow the last one
};

inline const Enumeration kNumber{"number", {}};

// The sizes of kernels' tiles, by name: of both platforms, all widths, and devices of any size, for tests at the edges
// of tiles. `sort_items` has the numbers of items that a thread sorts first, `sort_cells` those of a block.
using TileSizes = std::map<std::string, std::set<int64_t>>;
inline constexpr int kKeyWidths[] = {1, 2, 4, 8};  // bytes of a key, or of an element
inline constexpr int kStateWidths[] = {4, 8, 16};  // bytes of an operator's state

enum class TypeRule { kAny, kKey, kIndex, kBool, kS32, kU32, kReduced, kLike };

// An operand or a result, as text: "name: type [axes]", such as "heads: index [m]" or "values: =x [..n, width]?".
//
// The type is `key`; `index`, for int32 or int64; `bool`, `s32`, `u32` or `any`; `=x`, for the type of the array x; or
// `reduced`, for the type that the attribute `op` gives for x. Axes are those of the array's own rank: a number, an
// attribute, or a name that stands for one length in the whole call; or `*`, which the operation checks. Batch axes
// come before them. Results, and operands with `..`, have batch axes; other operands may have them. With `?` an operand
// may be absent, that is, have a last axis of length 0. With ` if attribute` or ` if attribute=value`, a result is
// given, or an operand is read, only under this condition.
struct Argument {
  std::string_view name;
  TypeRule type = TypeRule::kAny;
  std::string_view like;
  std::string_view axes[2] = {};
  int rank = -1;  // -1: `*`
  bool has_batch = false;
  bool may_be_absent = false;
  std::string_view condition;
  int64_t value = -1;  // the value that the condition asks for; -1: any but 0

  constexpr Argument() = default;
  consteval Argument(const char* text) {
    std::string_view rest(text);
    const auto take = [&](std::string_view end) {
      const size_t at = rest.find(end);
      if (at == rest.npos) throw "expected \"name: type [axes]\"";
      const std::string_view taken = rest.substr(0, at);
      rest.remove_prefix(at + end.size());
      return taken;
    };
    const auto skip = [&](std::string_view what) {
      const bool is_there = rest.starts_with(what);
      if (is_there) rest.remove_prefix(what.size());
      return is_there;
    };
    name = take(": ");
    like = take(" [");
    constexpr std::string_view names[] = {"any", "key", "index", "bool", "s32", "u32", "reduced"};
    if (like.starts_with('=')) {
      type = TypeRule::kLike;
      like.remove_prefix(1);
    } else {
      const auto found = std::find(std::begin(names), std::end(names), like);
      if (found == std::end(names)) throw "expected a type";
      type = static_cast<TypeRule>(found - std::begin(names));
    }
    has_batch = skip("..");
    if (!skip("*]")) {
      rank = 0;
      for (bool more = !skip("]"); more; ++rank) {
        more = rest.find(',') < rest.find(']');
        axes[rank] = take(more ? ", " : "]");
      }
    }
    may_be_absent = skip("?");
    if (skip(" if ")) {
      condition = rest.substr(0, rest.find('='));
      rest.remove_prefix(condition.size());
      if (skip("=")) value = rest[0] - '0';
    } else if (!rest.empty()) {
      throw "expected the end";
    }
  }
};

// Only entries with a name count.
struct Signature {
  struct Attribute {
    std::string_view name;
    const Enumeration* values = nullptr;  // null: a flag
  };
  Argument operands[8] = {};
  Argument results[8] = {};  // without the workspace
  Attribute attributes[4] = {};
  void (*tiles)(TileSizes& sizes) = nullptr;                             // adds the operation's tiles
  PlanReport (*plan)(const Call& call, const Traits& traits) = nullptr;  // null: there is no table of plans
};

inline std::string_view name_of(std::string_view name) { return name; }
template <typename Named>
std::string_view name_of(const Named& named) {
  return named.name;
}

template <typename Item, size_t kCapacity>
size_t named_count(const Item (&items)[kCapacity]) {
  return std::find_if(items, items + kCapacity, [](const Item& item) { return name_of(item).empty(); }) - items;
}

// Rejects sizes that no array has, with which later sums and products of sizes could overflow.
void expect_sizes(const Call& call);

// All arrays and attributes are checked before the first is read.
class Arguments {
 public:
  Arguments(const Call& call, const Signature& signature);

  const Array& operator[](std::string_view operand) const {
    return call_.operands[place(signature_.operands, operand)];
  }
  const Array& result(std::string_view name) const {
    const Array* const array = results_[place(signature_.results, name)];
    if (!array) call_.fail("this call does not give the result " + std::string(name));
    return *array;
  }
  int64_t attribute(std::string_view name) const {
    place(signature_.attributes, name);
    return call_.attributes[name];
  }
  bool flag(std::string_view name) const { return attribute(name) != 0; }

 private:
  template <typename Item, size_t kCapacity>
  size_t place(const Item (&items)[kCapacity], std::string_view name) const {
    for (size_t i = 0; i < kCapacity; ++i) {
      if (name_of(items[i]) == name) return i;
    }
    call_.fail("not in the signature: " + std::string(name));
  }

  bool holds(const Argument& argument) const {
    if (argument.condition.empty()) return true;
    const int64_t value = attribute(argument.condition);
    return argument.value < 0 ? value != 0 : value == argument.value;
  }

  const Call& call_;
  const Signature& signature_;
  const Array* results_[8] = {};  // null if this call does not give it
};

}  // namespace mgpu
