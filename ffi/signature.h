// What an operation takes and gives, by name: Python compares its own names with these when it is imported, and the
// reading of a call asks for arrays and attributes by them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "call.h"
#include "plan.h"

namespace mgpu {

// The names of an attribute's values, from 0 on.
struct Enumeration {
  std::string_view name;
  std::string_view values[16];  // as many as are not empty
};

// An attribute that may be any integer.
inline const Enumeration kNumber{"number", {}};

// The edges at which kernels go from one tile to the next, for tests: of both platforms, all widths, and devices of any
// size. By what is cut: the sizes of its tiles, and in `sort_items` and `sort_cells` of what a thread or a block sorts
// first.
using TileSizes = std::map<std::string, std::set<int64_t>>;
inline constexpr int kKeyWidths[] = {1, 2, 4, 8};  // bytes of a key, or of an element
inline constexpr int kStateWidths[] = {4, 8, 16};  // of what an operator combines

// In the order of the call. As many of each as have a name.
struct Signature {
  struct Attribute {
    std::string_view name;
    const Enumeration* values = nullptr;  // null: a flag
  };
  std::string_view operands[8] = {};
  std::string_view results[8] = {};  // beside the workspace
  Attribute attributes[4] = {};
  void (*tiles)(TileSizes& sizes) = nullptr;                             // adds those of its kernels
  PlanReport (*plan)(const Call& call, const Traits& traits) = nullptr;  // null: one kernel, whatever the call
};

inline std::string_view name_of(std::string_view name) { return name; }
inline std::string_view name_of(const Signature::Attribute& attribute) { return attribute.name; }

// How many of a list have a name.
template <typename Item, size_t kMost>
size_t named_count(const Item (&items)[kMost]) {
  return std::find_if(items, items + kMost, [](const Item& item) { return name_of(item).empty(); }) - items;
}

// The arrays and attributes of a call, by their names.
class Arguments {
 public:
  // `absent`: a result that this call does not give.
  Arguments(const Call& call, const Signature& signature, std::string_view absent = {})
      : call_(call), signature_(signature), absent_(absent) {
    const size_t count = named_count(signature.operands);
    if (call.operands.size() != count) {
      call.fail("expected " + std::to_string(count) + " operands, got " + std::to_string(call.operands.size()));
    }
  }

  const Array& operator[](std::string_view operand) const {
    return call_.operands[place(signature_.operands, operand)];
  }
  const Array& result(std::string_view name) const {
    const size_t i = place(signature_.results, name);
    return call_.results.at(i - (!absent_.empty() && i > place(signature_.results, absent_)));
  }
  int64_t attribute(std::string_view name) const {
    place(signature_.attributes, name);
    return call_.attributes[name];
  }
  bool flag(std::string_view name) const { return attribute(name) != 0; }

 private:
  template <typename Item, size_t kMost>
  size_t place(const Item (&items)[kMost], std::string_view name) const {
    for (size_t i = 0; i < kMost; ++i) {
      if (name_of(items[i]) == name) return i;
    }
    call_.fail("not in the signature: " + std::string(name));
  }

  const Call& call_;
  const Signature& signature_;
  std::string_view absent_;
};

}  // namespace mgpu
