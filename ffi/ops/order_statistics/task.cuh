// The parameter of the kernels: a call of order_statistics, its scratch memory, the digit of the pass, and the parts
// into which rows are cut for blocks.
#pragma once

#include "ops/order_statistics/plan.h"
#include "ops/order_statistics/rank_digits.cuh"

namespace mgpu::cuda::ranking {

constexpr int kRankThreads = kRankDigits / 4;  // each thread sums the counts of four digits
constexpr int kRankWarps = kRankThreads / kWarp;

template <typename Order_>
struct RanksTask {
  using Order = Order_;
  using Word = typename Order::Word;

  OrderStatisticsOperands operands;
  OrderStatisticsOperands::Scratch scratch;
  Order order;
  DigitPass pass;
  int64_t parts;
  int64_t part;  // items per block
};

}  // namespace mgpu::cuda::ranking
