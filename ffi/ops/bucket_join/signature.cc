#include "ops/bucket_join/plan.h"
#include "ops/common/read.h"

namespace mgpu {

const Signature signature::bucket_join{
    .operands = {"a_codes: u32 [n]", "a_rows: s32 [n]", "b_codes: u32 [m]", "b_rows: s32 [m]", "a_bounds: s32 [bounds]",
                 "b_bounds: s32 [bounds]", "extra_chunks: s32 [bounds]"},
    .results = {"a_rows: s32 [size]", "b_rows: s32 [size]", "count: index []"},
    .attributes = {{"keep_a"}},
    .tiles =
        [](TileSizes& sizes) {
          sizes["bucket_join"] = {kBucketChunk, kBucketCapacity};
          sizes["bucket_capacity"] = {kBucketCapacity};
          sizes["bucket_chunk"] = {kBucketChunk};
        },
};

BucketJoinOperands::BucketJoinOperands(const Call& call) {
  const Arguments in(call, signature::bucket_join);
  const Array& a_out = in.result("a_rows");
  problems = Call::batch(a_out, 1);
  size = Call::length(a_out);
  keep_a = in.flag("keep_a");
  const int64_t bounds = Call::length(in["a_bounds"]);
  bits = ceil_log2(bounds - 1);
  call.expect(bounds == buckets() + 1 && bits < 31, "a_bounds: expected one more than a power of 2");
  const auto words = [&](const char* name, int64_t length, int64_t& stride) {
    stride = call.row_stride(in[name], length, problems, name);
    return in[name].data;
  };
  const auto read_side = [&](const char* codes, const char* rows, const char* side_bounds, Strides& strides) {
    const int64_t length = Call::length(in[codes]);
    return BucketSide{static_cast<const uint32_t*>(words(codes, length, strides.codes)),
                      static_cast<const int32_t*>(words(rows, length, strides.rows)),
                      static_cast<const int32_t*>(words(side_bounds, bounds, strides.bounds)), length};
  };
  a = read_side("a_codes", "a_rows", "a_bounds", a_strides);
  b = read_side("b_codes", "b_rows", "b_bounds", b_strides);
  extra_chunks = static_cast<const int32_t*>(words("extra_chunks", bounds, extra_stride));
  a_rows = a_out.as<int32_t>();
  b_rows = in.result("b_rows").as<int32_t>();
  counts = call.index_result(in.result("count"), problems, "count");
}

}  // namespace mgpu
