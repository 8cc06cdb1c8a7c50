// A plan is the row of an operation's ordered table that runs for a call on a CUDA device. It follows from shapes,
// types, attributes and the device's traits, and is made without a device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>

namespace mgpu {

struct Traits {
  int64_t multiprocessors = 0;
  int64_t shared_memory = 0;  // bytes that a block gets on request
  int64_t l2_cache = 0;       // bytes
  int64_t capability = 0;     // such as 90, for sm_90
};

// Every device grants a block this much on request.
constexpr int64_t kMinSharedMemory = 64 << 10;

// One way to run a problem. The plan is the first row whose condition holds and whose blocks get the shared memory that
// they need.
template <typename Variant, typename Problem>
struct PlanRow {
  Variant variant;
  const char* name;
  const char* condition;                                      // the condition in words
  bool (*holds)(const Problem& problem) = nullptr;            // null: always
  int64_t (*shared_bytes)(const Problem& problem) = nullptr;  // null: no more than every device grants

  bool is_for(const Problem& problem) const { return !holds || holds(problem); }
  int64_t demand(const Problem& problem) const {
    return shared_bytes ? std::max(shared_bytes(problem), kMinSharedMemory) : kMinSharedMemory;
  }
};

template <typename Table, typename Problem>
const auto& plan_row(const Table& table, const Problem& problem, const Traits& traits) {
  for (const auto& row : table) {
    if (row.is_for(problem) && row.demand(problem) <= traits.shared_memory) return row;
  }
  return *(std::end(table) - 1);  // the condition of the last row always holds
}

// A program may be lowered without a device, so this is the most of all rows that some device takes.
template <typename Table, typename Problem, typename Bytes>
int64_t max_bytes(const Table& table, const Problem& problem, Bytes bytes) {
  int64_t largest = 0, granted = INT64_MAX;  // a device that grants this much takes an earlier row
  for (const auto& row : table) {
    if (!row.is_for(problem) || row.demand(problem) >= granted) continue;
    largest = std::max(largest, bytes(row));
    granted = row.demand(problem);
    if (granted <= kMinSharedMemory) break;
  }
  return largest;
}

struct PlanReport {
  std::string variant;    // the name of the row
  std::string condition;  // the condition of the row
  std::map<std::string, int64_t> tiles;
  double passes = 1;      // over memory: one pass reads the operands and writes the results
  int64_t workspace = 0;  // bytes of this plan; a call gets the bytes of the plan that takes the most
};

}  // namespace mgpu
