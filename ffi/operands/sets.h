// The call of the set operations as their kernels see it: the same on both platforms.
#pragma once

#include "algorithm/balanced_path.h"
#include "algorithm/set_operation.h"
#include "operands/sorted_pair.h"
#include "workspace.h"

namespace mgpu {

// A CUDA block's threads and the items that each walks over, by the keys' width in bytes: an odd number, so that lanes
// reading their items from shared memory meet different banks.
struct SetTileShape {
  int threads;
  int items;
  // Of both inputs; one item less than the threads have room for, as a split may take one more.
  constexpr int tile() const { return threads * items - 1; }
};
constexpr SetTileShape set_tile_shape(int key_width) { return {256, key_width == 8 ? 11 : 23}; }

// Operands: a [.., n_a], b [.., n_b], a_count [.., 1], b_count [.., 1], fill [.., 1], a_values [.., n_a], b_values
// [.., n_b], values_fill [.., 1]; counts and values may be absent (empty). Attributes: kind, duplicates, payload.
// Results: keys [.., size], the payload [.., size] unless there is none, count [..]. A payload of indices counts on
// from A's to B's items, and is -1 past the count.
struct SetsOperands {
  // An array read by rows; null where absent.
  struct Rows {
    const void* data = nullptr;
    int64_t stride = 0;
  };

  DType key_type;
  SetRule rule;
  bool duplicates;
  SortedPair pair;
  int64_t size;
  Rows fill;
  int payload_width = 0;  // bytes; 0 without payload
  bool gives_indices = false;
  Rows a_values;  // null for a payload of indices
  Rows b_values;
  Rows values_fill;
  void* keys;
  void* payload = nullptr;
  IndexResult counts;

  explicit SetsOperands(const Call& call) {
    call.expect(call.operands.size() == 8, "expected 8 operands");
    const auto& in = call.operands;
    const auto mode = static_cast<PayloadMode>(call.attributes["payload"]);
    rule = SetRule::of(static_cast<SetOperation>(call.attributes["kind"]));
    duplicates = call.attributes["duplicates"] != 0;

    const Array& keys_out = call.results.at(0);
    const Array& count_out = call.results.at(mode == PayloadMode::kNone ? 1 : 2);
    const int64_t rows = Call::batch(keys_out, 1);
    key_type = keys_out.dtype;
    size = Call::length(keys_out);
    keys = keys_out.data;
    pair = sorted_pair(call, in[0], in[1], in[2], in[3], rows);
    call.expect(in[0].dtype == key_type, "expected a result of the keys' type");
    fill = read(call, in[4], key_type, 1, "fill_value");
    counts = {count_out.data, count_out.dtype == DType::s64};
    call.expect((counts.wide || count_out.dtype == DType::s32) && count_out.size() == rows,
                "count: expected one a row");

    if (mode == PayloadMode::kNone) return;
    const Array& payload_out = call.results.at(1);
    call.expect(payload_out.size() == keys_out.size(), "payload: expected the shape of the keys");
    payload = payload_out.data;
    payload_width = byte_width(payload_out.dtype);
    gives_indices = mode == PayloadMode::kIndices;
    if (gives_indices) return;
    a_values = read(call, in[5], payload_out.dtype, pair.a.length, "a_values");
    if (rule.b_alone) b_values = read(call, in[6], payload_out.dtype, pair.b.length, "b_values");
    values_fill = read(call, in[7], payload_out.dtype, 1, "fill_value");
  }

  // A row has one tile at least, which tells its count.
  int64_t row_tiles(int64_t tile) const { return maximum<int64_t>(1, ceil_div(pair.row_slots(), tile)); }
  int64_t cuda_row_tiles() const { return row_tiles(set_tile_shape(byte_width(key_type)).tile()); }

  // Scratch memory of the CUDA kernels: each row's splits between tiles; the ticket counter and the words of the
  // look-back, one array, to be zeroed before every launch.
  struct Scratch {
    Split<int64_t>* splits;
    uint64_t* look_back;
    int64_t look_back_words;
  };
  Scratch layout(Workspace& workspace) const {
    const int64_t words = 1 + pair.rows * cuda_row_tiles();
    return {workspace.take<Split<int64_t>>(pair.rows * (cuda_row_tiles() + 1)), workspace.take<uint64_t>(words), words};
  }
  int64_t workspace_bytes() const {
    Workspace workspace;
    layout(workspace);
    return workspace.used();
  }

 private:
  Rows read(const Call& call, const Array& array, DType dtype, int64_t length, const char* name) const {
    call.expect(array.dtype == dtype, "expected operands of the results' types");
    call.expect(Call::length(array) == length, "expected one value a key");
    return {array.data, call.row_stride(array, length, pair.rows, name)};
  }
};

}  // namespace mgpu
