// Combines the rows of each key, and gives the groups in any order.
#pragma once

#include "algorithm/index_vector.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

enum class GroupState : int { kNone, kAdd, kMin, kMax };

constexpr int kMaxGroupColumns = 2;

// The counters of a problem: the number of groups, whether some group found no place, and whether a row has the
// largest key of the type, which empty entries have too.
constexpr int kGroupsFound = 0, kGroupsLeftOut = 1, kEmptyKeyUsed = 2, kGroupCounters = 3;

// Operands: keys [.., n], integers of 32 or 64 bits (c64 holds 64); x, y [.., n], integers of 32 bits, or absent (each
// row is a 1); count [.., 1], or absent; lower [.., n], or absent: with `lower`, keys have 32 bits, and a row's key is
// the code of 64 bits that puts pairs of `keys` and `lower` in order.
// Attributes: entries, a power of two; x_state, not kNone; y_state, kNone without a second column; bucketed, whether to
// partition the rows first. Results: groups [.., entries + 1], the keys of the entries; states of x and y, each
// [.., entries + 1]; counters [.., 3]. The first entry is that of the largest key of the type. Entries without a group
// have this key and states of 0. States of extrema are codes: the words whose unsigned maximum is sought.
// If some group found no place, the results are undefined.
struct HashGroupsOperands {
  DType key_type;
  bool bucketed;
  int columns;
  int64_t rows;
  int64_t length;
  int64_t entries;
  LiveCounts counts;
  const void* keys;
  int64_t keys_stride;
  const uint32_t* lower;  // null if absent
  int64_t lower_stride;
  uint64_t flip_of_pairs;             // the bits in which a code differs from the pair
  bool has_values[kMaxGroupColumns];  // otherwise each row is a 1
  const uint32_t* values[kMaxGroupColumns];
  int64_t values_stride[kMaxGroupColumns];
  GroupState kinds[kMaxGroupColumns];
  bool is_signed[kMaxGroupColumns];
  void* groups;
  uint32_t* states[kMaxGroupColumns];
  uint32_t* counters;

  explicit HashGroupsOperands(const Call& call);

  bool has_signed_keys() const { return key_type == DType::s32 || key_type == DType::s64; }

  // The bits in which the codes of a column's values differ from the values.
  uint32_t flip(int column) const {
    const bool is_extremum = kinds[column] == GroupState::kMin || kinds[column] == GroupState::kMax;
    const uint32_t sign = is_extremum && is_signed[column] ? 1u << 31 : 0;
    return kinds[column] == GroupState::kMin ? ~sign : sign;
  }

  struct Scratch;
  Scratch layout(Workspace& workspace) const;
};

}  // namespace mgpu
