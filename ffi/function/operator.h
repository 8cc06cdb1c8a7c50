// A compiled function as an operator of the kernels: `Function` has an item's struct, combine(a, b), nothing(), the
// result over no items, and, where kHasNeutral, neutral(), which changes no bit of what it is combined with.
#pragma once

#include "algorithm/operators.h"
#include "function/item.h"

namespace mgpu {

// With a neutral item.
template <typename Function>
struct NeutralOperator {
  using Element = typename Function::Item;
  using State = Element;
  using Result = Element;
  static constexpr bool kGivesIndex = false;
  static constexpr bool kCommutes = Function::kCommutes;
  static constexpr bool kReverse = Function::kReverse;
  static constexpr bool kExclusive = Function::kExclusive;

  Captures captures;

  MGPU_HOST_DEVICE Function function() const { return {captures}; }
  MGPU_HOST_DEVICE State identity() const { return function().neutral(); }
  MGPU_HOST_DEVICE State extract(const Element& element, int64_t /*position*/) const { return element; }
  MGPU_HOST_DEVICE State combine(const State& a, const State& b) const { return function().combine(a, b); }
  MGPU_HOST_DEVICE Result finish(const State& state, int64_t /*row_begin*/) const { return state; }
  MGPU_HOST_DEVICE Result dead() const { return Function::zero(); }
};

// Without: a state is an item or nothing.
template <typename Function>
struct LiftedOperator {
  using Element = typename Function::Item;
  using Result = Element;
  struct State {
    Element item;
    std::conditional_t<alignof(Element) == 8, uint64_t, uint32_t> some;  // leaves no padding
  };
  static constexpr bool kGivesIndex = false;
  static constexpr bool kCommutes = Function::kCommutes;
  static constexpr bool kReverse = Function::kReverse;
  static constexpr bool kExclusive = Function::kExclusive;

  Captures captures;

  MGPU_HOST_DEVICE Function function() const { return {captures}; }
  MGPU_HOST_DEVICE State identity() const { return {Function::zero(), 0}; }
  MGPU_HOST_DEVICE State extract(const Element& element, int64_t /*position*/) const { return {element, 1}; }
  MGPU_HOST_DEVICE State combine(const State& a, const State& b) const {
    if constexpr (Function::kBranches) {  // might never end on what is no item, or cost much
      if (!b.some) return a;
      if (!a.some) return b;
      return {function().combine(a.item, b.item), 1};
    } else {
      const Element both = function().combine(a.item, b.item);
      State state{a.item, static_cast<decltype(State::some)>(a.some | b.some)};
      for_each_leaf<Element>([&]<int kLeaf>() {
        auto& to = Element::template leaf<kLeaf>(state.item);
        const auto& later = Element::template leaf<kLeaf>(b.item);
        const auto& combined = Element::template leaf<kLeaf>(both);
        MGPU_UNROLL
        for (int e = 0; e < static_cast<int>(sizeof(to) / sizeof(to[0])); ++e) {
          to[e] = !b.some ? to[e] : !a.some ? later[e] : combined[e];
        }
      });
      return state;
    }
  }
  MGPU_HOST_DEVICE Result finish(const State& state, int64_t /*row_begin*/) const {
    return state.some ? state.item : function().nothing();
  }
  MGPU_HOST_DEVICE Result dead() const { return Function::zero(); }
};

template <typename Function>
using FunctionOperator = std::conditional_t<Function::kHasNeutral, NeutralOperator<Function>, LiftedOperator<Function>>;

}  // namespace mgpu
