#include "operands/bucket_join.h"

#include "operands/read.h"

namespace mgpu {

const Signature signature::bucket_join{
    .operands = {"a_codes", "a_rows", "b_codes", "b_rows", "a_bounds", "b_bounds", "extra_chunks"},
    .results = {"a_rows", "b_rows", "count"},
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
  const Array& b_out = in.result("b_rows");
  problems = Call::batch(a_out, 1);
  size = Call::length(a_out);
  keep_a = in.flag("keep_a");
  const int64_t bounds = Call::length(in["a_bounds"]);
  bits = ceil_log2(bounds - 1);
  call.expect(bounds == buckets() + 1 && bits < 31, "a_bounds: expected one more than a power of 2");
  const auto words = [&](const char* name, DType dtype, int64_t length, int64_t& stride) {
    const Array& array = in[name];
    call.expect(array.dtype == dtype, "codes and rows: expected uint32 and int32");
    call.expect(Call::length(array) == length, "codes, rows and bounds: expected lengths that agree");
    stride = call.row_stride(array, length, problems, name);
    return array.data;
  };
  const auto read_side = [&](const char* codes, const char* rows, const char* side_bounds, Strides& strides) {
    const int64_t length = Call::length(in[codes]);
    return BucketSide{static_cast<const uint32_t*>(words(codes, DType::u32, length, strides.codes)),
                      static_cast<const int32_t*>(words(rows, DType::s32, length, strides.rows)),
                      static_cast<const int32_t*>(words(side_bounds, DType::s32, bounds, strides.bounds)), length};
  };
  a = read_side("a_codes", "a_rows", "a_bounds", a_strides);
  b = read_side("b_codes", "b_rows", "b_bounds", b_strides);
  extra_chunks = static_cast<const int32_t*>(words("extra_chunks", DType::s32, bounds, extra_stride));
  for (const Array* out : {&a_out, &b_out}) {
    call.expect(out->dtype == DType::s32 && out->size() == problems * size, "rows: expected int32, as many of both");
  }
  a_rows = a_out.as<int32_t>();
  b_rows = b_out.as<int32_t>();
  counts = call.index_result(in.result("count"), problems, "count");
}

unsigned long long* BucketJoinOperands::layout(Workspace& workspace) const {
  return workspace.take<unsigned long long>(problems);
}

int64_t workspace::bucket_join(const Call& call) { return layout_bytes(BucketJoinOperands(call)); }

}  // namespace mgpu
