// What runs for a call on a CUDA device: a row of a table that the operation has, in order. A plan follows from shapes,
// types, attributes and from what the device has. It is made without a device, so tests and `explain` can ask for it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace mgpu {

// What plans ask of a device.
struct Traits {
  int64_t multiprocessors;
  int64_t shared_memory;  // bytes that a block is granted if it asks for them
  int64_t l2_cache;       // bytes
  int64_t capability;     // 90 of sm_90
};

// A plan as others see it.
struct PlanReport {
  std::string variant;    // the name of the row
  std::string condition;  // why the row was taken
  std::map<std::string, int64_t> tiles;
  double passes = 1;      // over memory: one reads the operands and writes the results
  int64_t workspace = 0;  // bytes of this plan: of the call, that is the most of any device
};

}  // namespace mgpu
