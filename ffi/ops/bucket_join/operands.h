// Finds the pairs of rows of two tables whose codes are equal. Rows are in buckets by the highest bits of their codes,
// and a bucket of b fits the shared memory of a block.
#pragma once

#include "algorithm/index_vector.h"
#include "algorithm/segments.h"
#include "runtime/dtype.h"

namespace mgpu {

struct Call;
class Workspace;

constexpr int kBucketCapacity = 1 << 12;  // the most rows of b in a bucket
constexpr int kBucketChunk = 1 << 12;
constexpr int kBucketSlotBits = 12;

MGPU_HOST_DEVICE int bucket_slot(uint32_t code, int bucket_bits) {
  return static_cast<int>(code << bucket_bits >> (32 - kBucketSlotBits));
}

struct BucketSide {
  const uint32_t* codes;
  const int32_t* rows;
  const int32_t* bounds;  // where each bucket begins, and where the last one ends
  int64_t length;

  // The positions of a bucket, cut to the length.
  MGPU_HOST_DEVICE Range<int64_t> bucket(int64_t number) const {
    const int64_t begin = clamp<int64_t>(bounds[number], 0, length);
    return {begin, clamp<int64_t>(bounds[number + 1], begin, length)};
  }
};

// Operands, all but the codes int32:
//   a_codes [.., n_a], b_codes [.., n_b]       uint32, in buckets by their highest bits
//   a_rows [.., n_a], b_rows [.., n_b]         the row of each code; rows of equal codes ascend
//   a_bounds, b_bounds [.., 2^bits + 1]        where each bucket begins, and where the last one ends
//   extra_chunks [.., 2^bits + 1]              for each bucket of a, the number of chunks in earlier buckets, without
//                                              the first chunk of each; a chunk has kBucketChunk rows
// Attribute: keep_a, whether a row of a without a partner makes an output row. Results:
//   a_rows [.., size], b_rows [.., size]       the rows of each pair; -1 for a missing row of b; both -1 past the count
//   count [..]                                 the number of output rows, which may exceed the size
// Pairs come in any order, but the pairs of one row of a are consecutive, in the order of b's rows. Rows of b beyond
// the first kBucketCapacity of a bucket are ignored.
struct BucketJoinOperands {
  int64_t problems;
  int64_t size;
  int bits;
  bool keep_a;
  BucketSide a;  // the table a of the first problem
  BucketSide b;
  const int32_t* extra_chunks;
  struct Strides {  // the distances from problem to problem
    int64_t codes;
    int64_t rows;
    int64_t bounds;
  };
  Strides a_strides;
  Strides b_strides;
  int64_t extra_stride;
  int32_t* a_rows;
  int32_t* b_rows;
  IndexResult counts;

  explicit BucketJoinOperands(const Call& call);

  MGPU_HOST_DEVICE int64_t buckets() const { return int64_t{1} << bits; }
  MGPU_HOST_DEVICE BucketSide a_side(int64_t problem) const { return side(a, a_strides, problem); }
  MGPU_HOST_DEVICE BucketSide b_side(int64_t problem) const { return side(b, b_strides, problem); }

  // A count that does not fit its type is given as the largest number that does.
  MGPU_HOST_DEVICE void set_count(int64_t problem, uint64_t count) const {
    constexpr uint64_t kLargest = 2147483647;
    counts.set(problem, static_cast<int64_t>(counts.wide ? count : minimum(count, kLargest)));
  }

  MGPU_HOST_DEVICE int64_t max_extra_chunks() const { return a.length / kBucketChunk; }
  // On CUDA (plan.h), one block per bucket is launched, then blocks that share the extra chunks. Scratch memory holds
  // each problem's number of output rows.
  MGPU_HOST_DEVICE int64_t extra_blocks() const;
  MGPU_HOST_DEVICE int64_t blocks() const;
  unsigned long long* layout(Workspace& workspace) const;

 private:
  MGPU_HOST_DEVICE static BucketSide side(const BucketSide& first, const Strides& strides, int64_t problem) {
    return {first.codes + problem * strides.codes, first.rows + problem * strides.rows,
            first.bounds + problem * strides.bounds, first.length};
  }
};

}  // namespace mgpu
