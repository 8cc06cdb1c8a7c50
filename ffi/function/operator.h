// A compiled function as an operator of the kernels. `Function` has the structs of items in memory (Element), of
// combined items (Item), and of results (Result). It has combine(a, b), and dead(), the result for an item past the
// count. If kHasNeutral, it has neutral(), which changes no bit of an item combined with it; else it has nothing(), the
// result over no items. If kLoads, load(element, position) makes an item from an element. If kFinishes, finish(item)
// makes a result from an item; if kTakesNext, it is finish(item, element).
#pragma once

#include "algorithm/operators.h"
#include "function/item.h"

namespace mgpu {

template <typename Function>
struct OperatorOfFunction {
  using Element = typename Function::Element;
  using Result = typename Function::Result;
  static constexpr bool kGivesIndex = false;
  static constexpr bool kCommutes = Function::kCommutes;
  static constexpr bool kReverse = Function::kReverse;
  static constexpr bool kExclusive = Function::kExclusive;
  static constexpr bool kTakesNext = Function::kTakesNext;

  Captures captures;
  int64_t length;

  MGPU_HOST_DEVICE Function function() const { return {captures}; }
  // `position` counts through all rows; the function's own position counts through the items of one row.
  MGPU_HOST_DEVICE typename Function::Item load(const Element& element, int64_t position) const {
    if constexpr (Function::kLoads) {
      return function().load(element, position < length ? position : position % length);
    } else {
      return element;
    }
  }
  MGPU_HOST_DEVICE Result finished(const typename Function::Item& item) const {
    if constexpr (kTakesNext) {
      return dead();  // no kernel that runs such a function calls this
    } else if constexpr (Function::kFinishes) {
      return function().finish(item);
    } else {
      return item;
    }
  }
  MGPU_HOST_DEVICE Result dead() const { return function().dead(); }
};

template <typename Function>
struct NeutralOperator : OperatorOfFunction<Function> {
  using State = typename Function::Item;
  using Element = typename Function::Element;
  using Result = typename Function::Result;

  MGPU_HOST_DEVICE State identity() const { return this->function().neutral(); }
  MGPU_HOST_DEVICE State extract(const Element& element, int64_t position) const {
    return this->load(element, position);
  }
  MGPU_HOST_DEVICE State combine(const State& a, const State& b) const { return this->function().combine(a, b); }
  MGPU_HOST_DEVICE Result finish(const State& state, int64_t /*row_begin*/) const { return this->finished(state); }
  MGPU_HOST_DEVICE Result finish_with(const State& state, const Element& element) const {
    return this->function().finish(state, element);
  }
};

// The operator of a function without a neutral item: a state is an item or nothing.
template <typename Function>
struct LiftedOperator : OperatorOfFunction<Function> {
  using Item = typename Function::Item;
  using Element = typename Function::Element;
  using Result = typename Function::Result;
  struct State {
    Item item;
    std::conditional_t<alignof(Item) == 8, uint64_t, uint32_t> some;  // leaves no padding
  };

  MGPU_HOST_DEVICE State identity() const { return {Function::zero(), 0}; }
  MGPU_HOST_DEVICE State extract(const Element& element, int64_t position) const {
    return {this->load(element, position), 1};
  }
  MGPU_HOST_DEVICE State combine(const State& a, const State& b) const {
    if constexpr (Function::kBranches) {  // combining a non-item might never end, or cost much
      if (!b.some) return a;
      if (!a.some) return b;
      return {this->function().combine(a.item, b.item), 1};
    } else {
      const Item both = this->function().combine(a.item, b.item);
      State state{a.item, static_cast<decltype(State::some)>(a.some | b.some)};
      for_each_leaf<Item>([&]<int kLeaf>() {
        auto& to = Item::template leaf<kLeaf>(state.item);
        const auto& later = Item::template leaf<kLeaf>(b.item);
        const auto& combined = Item::template leaf<kLeaf>(both);
        MGPU_UNROLL
        for (int e = 0; e < static_cast<int>(sizeof(to) / sizeof(to[0])); ++e) {
          to[e] = !b.some ? to[e] : !a.some ? later[e] : combined[e];
        }
      });
      return state;
    }
  }
  MGPU_HOST_DEVICE Result finish(const State& state, int64_t /*row_begin*/) const {
    return state.some ? this->finished(state.item) : this->function().nothing();
  }
};

struct AnyOperator {
  using Element = AnyItem;
  using State = char;
  using Result = AnyItem;
  Captures captures;
  int64_t length;
};
static_assert(sizeof(AnyOperator) == sizeof(Captures) + sizeof(int64_t));

template <typename Function>
using FunctionOperator = std::conditional_t<Function::kHasNeutral, NeutralOperator<Function>, LiftedOperator<Function>>;

}  // namespace mgpu
