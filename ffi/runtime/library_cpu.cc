// The library that is always built. It has the handlers of CPU calls, the plans and workspace sizes of CUDA calls, and
// facts about the build.
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "runtime/check.h"
#include "runtime/description.h"
#include "runtime/handler.h"
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

// The texts of a plan stay valid until the next plan of this thread.
PlanEntry plan_of(const Call& call, const Traits& traits) {
  static thread_local PlanReport plan;
  static thread_local std::vector<AttributeValue> tiles;
  plan = {};
#define MGPU_PLAN(name) \
  if (call.operation == #name && signature::name.plan) plan = signature::name.plan(call, traits);
  MGPU_OPERATIONS(MGPU_PLAN)
  MGPU_CUDA_OPERATIONS(MGPU_PLAN)
#undef MGPU_PLAN
  tiles.clear();
  for (const auto& [name, size] : plan.tiles) tiles.push_back({name.c_str(), size});
  return {plan.variant.c_str(), plan.condition.c_str(), Description::list(tiles),
          plan.passes,          plan.workspace,         workspace_bytes(call)};
}

// The arrays of the call have no data.
template <typename Ask>
auto ask_of(const CallEntry& entry, Ask ask) {
  MapAttributes attributes;
  for (const auto& [name, value] : entry.attributes) attributes.map[name] = value;
  Call call{entry.operation, {}, {}, attributes};
  const auto shaped = [](const List<ArrayEntry>& entries, std::vector<Array>& arrays) {
    for (const auto& [dtype, dimensions] : entries) {
      arrays.push_back({nullptr, dtype_named(dtype), {dimensions.begin(), dimensions.end()}});
    }
  };
  shaped(entry.operands, call.operands);
  shaped(entry.results, call.results);
  expect_sizes(call);
  return ask(call);
}

struct CpuDescription : Description {
  CpuDescription() : Description(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR) {
#define MGPU_NAME(name) #name " "
    static constexpr FactEntry facts[] = {{"build", MGPU_BUILD},
                                          {"is_wheel", MGPU_IS_WHEEL ? "yes" : ""},
                                          {"by_function", MGPU_FUNCTION_OPERATIONS(MGPU_NAME)}};
#undef MGPU_NAME
    table.facts = {facts, std::size(facts)};
#define MGPU_ENTRY(name) {#name, "execute", reinterpret_cast<void*>(name##_ffi)},
    static const HandlerEntry handlers[] = {MGPU_ENTRY(check) MGPU_OPERATIONS(MGPU_ENTRY)};
#undef MGPU_ENTRY
    table.handlers = {handlers, std::size(handlers)};
    TileSizes all;
#define MGPU_TILES(name) \
  if (signature::name.tiles) signature::name.tiles(all);
    MGPU_OPERATIONS(MGPU_TILES)
    MGPU_CUDA_OPERATIONS(MGPU_TILES)
#undef MGPU_TILES
    for (const auto& [what, each] : all) tile_sizes_.push_back({text(what), sizes(each)});
    table.tile_sizes = list(tile_sizes_);
    table.workspace_bytes = [](const CallEntry& call) {
      return result_of<int64_t>([&] { return ask_of(call, workspace_bytes); });
    };
    table.plan = [](const CallEntry& call, const Traits& traits) {
      return result_of<PlanEntry>(
          [&] { return ask_of(call, [&](const Call& call) { return plan_of(call, traits); }); });
    };
    table.function_source = [](const char* data) {
      static thread_local std::string source;
      return result_of<const char*>([&] { return (source = FunctionData(data).source).c_str(); });
    };
  }

 private:
  std::vector<TileSizesEntry> tile_sizes_;
};

}  // namespace
}  // namespace mgpu

const mgpu::LibraryTable* jax_mgpu_library() {
  static const mgpu::CpuDescription description;
  return &description.table;
}
