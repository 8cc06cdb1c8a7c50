// The call of merge as its kernels see it: the same on both platforms.
#pragma once

#include "operands/sorted_pair.h"

namespace mgpu {

// Operands: a [.., n_a], b [.., n_b], their payloads of the same shapes, a_count [.., 1], b_count [.., 1]; payloads and
// counts may be absent (empty). Attributes: descending, payload. Results: keys [.., n_a + n_b], and the payload.
struct MergeOperands {
  // One side's payload; rows as of its keys.
  struct Payload {
    const void* data = nullptr;  // null stands for indices into the concatenation of A and B
    int64_t stride = 0;
    int64_t stored = 0;
  };

  DType key_type;
  bool descending;
  SortedPair pair;
  Payload a_payload;
  Payload b_payload;
  int payload_width = 0;  // bytes; 0 without payload
  void* keys;
  void* payload = nullptr;

  explicit MergeOperands(const Call& call) {
    call.expect(call.operands.size() == 6, "expected 6 operands");
    const Array& keys_out = call.results.at(0);
    key_type = keys_out.dtype;
    descending = call.attributes["descending"] != 0;
    pair = sorted_pair(call, call.operands[0], call.operands[1], call.operands[4], call.operands[5],
                       Call::batch(keys_out, 1));
    call.expect(call.operands[0].dtype == key_type && Call::length(keys_out) == pair.row_slots(),
                "expected a result of the keys' type and total length");
    keys = keys_out.data;
    const auto mode = static_cast<PayloadMode>(call.attributes["payload"]);
    if (mode == PayloadMode::kNone) return;
    const Array& payload_out = call.results.at(1);
    call.expect(payload_out.size() == keys_out.size(), "payload: expected the shape of the keys");
    payload = payload_out.data;
    payload_width = byte_width(payload_out.dtype);
    if (mode == PayloadMode::kIndices) return;
    a_payload = side(call, call.operands[2], payload_out, pair.a, "a_values");
    b_payload = side(call, call.operands[3], payload_out, pair.b, "b_values");
  }

  MergeSplits layout(Workspace& workspace) const { return MergeSplits::layout(pair, workspace); }
  bool gives_indices() const { return payload && !a_payload.data && !b_payload.data; }

 private:
  Payload side(const Call& call, const Array& values, const Array& result, const SortedRows& keys, const char* name) {
    call.expect(values.dtype == result.dtype, "values: expected the type of the result");
    call.expect(Call::length(values) == keys.length, "values: expected one a key");
    return {values.data, call.row_stride(values, keys.length, pair.rows, name), values.size()};
  }
};

}  // namespace mgpu
