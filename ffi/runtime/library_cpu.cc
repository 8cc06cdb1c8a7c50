// The library that is always built: CPU handlers, workspace sizes of the CUDA ones, build information.
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "runtime/check.h"
#include "runtime/handler.h"
#include "runtime/library.h"
#include "runtime/operations.h"
#include "runtime/signature.h"

namespace mgpu {
namespace {

struct XlaExecutor final : cpu::Executor {
  explicit XlaExecutor(ffi::ThreadPool pool) : pool(pool) {}
  int concurrency() const override { return static_cast<int>(pool.num_threads()); }
  void schedule(std::function<void()> task) override { pool.Schedule(std::move(task)); }
  ffi::ThreadPool pool;
};

#define MGPU_HANDLER(name)                                                                                       \
  ffi::Error name##_handler(ffi::ThreadPool pool, ffi::RemainingArgs operands, ffi::RemainingRets results,       \
                            ffi::Dictionary attributes) {                                                        \
    XlaExecutor executor(pool);                                                                                  \
    return run_call(#name, operands, results, attributes, [&](const Call& call) { cpu::name(call, executor); }); \
  }                                                                                                              \
  XLA_FFI_DEFINE_HANDLER(name##_ffi, name##_handler,                                                             \
                         ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs());
MGPU_OPERATIONS(MGPU_HANDLER)
#undef MGPU_HANDLER

ffi::Error check_handler(ffi::RemainingArgs operands, ffi::RemainingRets results, ffi::Dictionary attributes) {
  return run_call("check", operands, results, attributes, [&](const Call& call) {
    expect_check_operands(call);
    const Array& argument = call.operands[0];
    const Array& result = call.results[0];
    if (result.data != argument.data) std::memcpy(result.data, argument.data, result.bytes());
    throw_if_broken(call, call.operands[1].as<int32_t>(), call.operands[2].data,
                    attribute_text(attributes, "expected"));
  });
}
XLA_FFI_DEFINE_HANDLER(check_ffi, check_handler, ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());

struct MapAttributes final : Attributes {
  int64_t operator[](std::string_view name) const override {
    const auto found = map.find(name);
    if (found == map.end()) throw CallError("no integer attribute " + std::string(name));
    return found->second;
  }
  std::map<std::string, int64_t, std::less<>> map;
};

DType dtype_named(std::string_view name) {
  for (int code = 0; code <= static_cast<int>(DType::c128); ++code) {
    if (dtype_name(static_cast<DType>(code)) == name) return static_cast<DType>(code);
  }
  throw CallError("element type without a kernel: " + std::string(name));
}

int64_t workspace_bytes(const Call& call) {
#define MGPU_WORKSPACE(name) \
  if (call.operation == #name) return workspace::name(call);
  MGPU_OPERATIONS(MGPU_WORKSPACE)
  MGPU_CUDA_OPERATIONS(MGPU_WORKSPACE)
  MGPU_FUNCTION_OPERATIONS(MGPU_WORKSPACE)
#undef MGPU_WORKSPACE
  throw CallError("no operation of this name: " + std::string(call.operation));
}

// The plan of a call on a device, and the scratch memory that the call gets.
std::string json_plan(const Call& call, const Traits& traits) {
  PlanReport plan;
#define MGPU_PLAN(name) \
  if (call.operation == #name && signature::name.plan) plan = signature::name.plan(call, traits);
  MGPU_OPERATIONS(MGPU_PLAN)
  MGPU_CUDA_OPERATIONS(MGPU_PLAN)
#undef MGPU_PLAN
  std::map<std::string, std::string> tiles;
  for (const auto& [name, size] : plan.tiles) tiles[name] = json(size);
  return json_object({{"variant", json(plan.variant)},
                      {"condition", json(plan.condition)},
                      {"tiles", json_object(tiles)},
                      {"passes", std::to_string(plan.passes)},
                      {"workspace", json(plan.workspace)},
                      {"scratch", json(workspace_bytes(call))}});
}

// By what is cut into tiles: the sizes of these, on both platforms, for tests.
std::string json_tile_sizes() {
  TileSizes all;
#define MGPU_TILES(name) \
  if (signature::name.tiles) signature::name.tiles(all);
  MGPU_OPERATIONS(MGPU_TILES)
  MGPU_CUDA_OPERATIONS(MGPU_TILES)
#undef MGPU_TILES
  std::map<std::string, std::string> table;
  for (const auto& [what, sizes] : all) {
    table[what] = json_list(sizes, [](int64_t size) { return json(size); });
  }
  return json_object(table);
}

}  // namespace

// A call whose workspace or plan is asked for: an array, an attribute, all of them.
struct ArraySpec {
  const char* dtype;
  const int64_t* dimensions;
  int64_t rank;
};
struct AttributeSpec {
  const char* name;
  int64_t value;
};
struct CallSpec {
  const char* operation;
  const ArraySpec* arrays;  // operands, then results
  int64_t operand_count;
  int64_t result_count;
  const AttributeSpec* attributes;
  int64_t attribute_count;
};

namespace {

// What `answer` says of the call. Where there is no such call, `otherwise` and `error`.
template <typename Answer, typename Value>
Value answer_for(const CallSpec& spec, const char** error, Value otherwise, Answer answer) {
  try {
    MapAttributes values;
    for (int64_t i = 0; i < spec.attribute_count; ++i) values.map[spec.attributes[i].name] = spec.attributes[i].value;
    Call call{spec.operation, {}, {}, values};
    for (int64_t i = 0; i < spec.operand_count + spec.result_count; ++i) {
      const ArraySpec& array = spec.arrays[i];
      (i < spec.operand_count ? call.operands : call.results)
          .push_back({nullptr, dtype_named(array.dtype), {array.dimensions, array.dimensions + array.rank}});
    }
    expect_sizes(call);
    return answer(call);
  } catch (const std::exception& exception) {
    *error = keep(exception.what());
    return otherwise;
  }
}

}  // namespace
}  // namespace mgpu

const char* jax_mgpu_describe(const char* what) {
  using namespace mgpu;
  const std::string_view name(what);
  if (name == "library") {
    return keep(json_description({{"build", json(MGPU_BUILD)}, {"is_wheel", MGPU_IS_WHEEL ? "true" : "false"}},
                                 XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR));
  }
  if (name == "tile_sizes") return keep(json_tile_sizes());
  return nullptr;
}

const mgpu::HandlerEntry* jax_mgpu_handlers() {
  using namespace mgpu;
#define MGPU_ENTRY(name) {#name, "execute", reinterpret_cast<void*>(name##_ffi)},
  static const HandlerEntry table[] = {MGPU_ENTRY(check) MGPU_OPERATIONS(MGPU_ENTRY){nullptr, nullptr, nullptr}};
#undef MGPU_ENTRY
  return table;
}

// The C++ that a function's data become. Where they are of no function, null and `error`.
MGPU_EXPORT const char* jax_mgpu_function_source(const char* data, const char** error) {
  using namespace mgpu;
  try {
    return keep(FunctionData(data).source);
  } catch (const std::exception& exception) {
    *error = keep(exception.what());
    return nullptr;
  }
}

// Bytes of scratch memory of the CUDA handler. Where there is no such call, -1 and `error`.
MGPU_EXPORT int64_t jax_mgpu_workspace_bytes(const mgpu::CallSpec* call, const char** error) {
  return mgpu::answer_for(*call, error, int64_t{-1}, mgpu::workspace_bytes);
}

// The plan of a call on a device of these traits, as JSON. Where there is no such call, null and `error`.
MGPU_EXPORT const char* jax_mgpu_plan(const mgpu::CallSpec* call, const mgpu::Traits* traits, const char** error) {
  using namespace mgpu;
  return answer_for(*call, error, static_cast<const char*>(nullptr),
                    [&](const Call& call) { return keep(json_plan(call, *traits)); });
}
