// The always-built module: CPU handlers, workspace sizes of the CUDA ones, build information.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>

#include "check.h"
#include "handler.h"
#include "operations.h"
#include "signature.h"
#include "tiles.h"

namespace nb = nanobind;

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
MGPU_CPU_OPERATIONS(MGPU_HANDLER)
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

nb::dict handlers() {
  nb::dict table;
  table["check"] = nb::capsule(reinterpret_cast<void*>(check_ffi));
#define MGPU_CAPSULE(name) table[#name] = nb::capsule(reinterpret_cast<void*>(name##_ffi));
  MGPU_OPERATIONS(MGPU_CAPSULE)
  MGPU_CPU_OPERATIONS(MGPU_CAPSULE)
#undef MGPU_CAPSULE
  return table;
}

nb::list cpu_operations() {
  nb::list list;
#define MGPU_NAME(name) list.append(nb::cast(std::string(#name)));
  MGPU_CPU_OPERATIONS(MGPU_NAME)
#undef MGPU_NAME
  return list;
}

template <typename Item, size_t kMost>
nb::list names(const Item (&items)[kMost]) {
  nb::list list;
  for (size_t i = 0; i < named_count(items); ++i) list.append(nb::cast(std::string(name_of(items[i]))));
  return list;
}

nb::dict signatures() {
  nb::dict table;
  const auto add = [&](const char* operation, const Signature& of) {
    nb::dict attributes;
    for (const Signature::Attribute& attribute : of.attributes) {
      if (attribute.name.empty()) break;
      const std::string kind(attribute.values ? attribute.values->name : "flag");
      attributes[nb::cast(std::string(attribute.name))] = kind;
    }
    nb::dict signature;
    signature["operands"] = names(of.operands);
    signature["results"] = names(of.results);
    signature["attributes"] = attributes;
    table[operation] = signature;
  };
#define MGPU_SIGNATURE(name) add(#name, signature::name);
  MGPU_OPERATIONS(MGPU_SIGNATURE)
  MGPU_CPU_OPERATIONS(MGPU_SIGNATURE)
#undef MGPU_SIGNATURE
  return table;
}

nb::dict enumerations() {
  nb::dict table;
  const auto add = [&](const Signature& of) {
    for (const Signature::Attribute& attribute : of.attributes) {
      if (attribute.values && attribute.values != &kNumber)
        table[nb::cast(std::string(attribute.values->name))] = names(attribute.values->values);
    }
  };
#define MGPU_SIGNATURE(name) add(signature::name);
  MGPU_OPERATIONS(MGPU_SIGNATURE)
  MGPU_CPU_OPERATIONS(MGPU_SIGNATURE)
#undef MGPU_SIGNATURE
  return table;
}

struct MapAttributes final : Attributes {
  explicit MapAttributes(nb::dict values) {
    for (auto [key, value] : values) map[nb::cast<std::string>(key)] = nb::cast<int64_t>(value);
  }
  int64_t operator[](std::string_view name) const override {
    const auto found = map.find(name);
    if (found == map.end()) throw CallError("no integer attribute " + std::string(name));
    return found->second;
  }
  std::map<std::string, int64_t, std::less<>> map;
};

using Specs = std::vector<std::tuple<std::string, std::vector<int64_t>>>;

std::vector<Array> arrays_of(const Specs& specs) {
  std::vector<Array> arrays;
  for (const auto& [name, dimensions] : specs) {
    Array array{nullptr, DType::u8, dimensions};
    bool known = false;
    for (int code = 0; code <= static_cast<int>(DType::c128); ++code) {
      if (dtype_name(static_cast<DType>(code)) != name) continue;
      array.dtype = static_cast<DType>(code);
      known = true;
    }
    if (!known) throw CallError("element type without a kernel: " + name);
    arrays.push_back(std::move(array));
  }
  return arrays;
}

int64_t workspace_bytes(const std::string& operation, const Specs& operands, const Specs& results, nb::dict values) {
  const MapAttributes attributes(values);
  const Call call{operation, arrays_of(operands), arrays_of(results), attributes};
#define MGPU_WORKSPACE(name) \
  if (operation == #name) return workspace::name(call);
  MGPU_OPERATIONS(MGPU_WORKSPACE)
  MGPU_FUNCTION_OPERATIONS(MGPU_WORKSPACE)
#undef MGPU_WORKSPACE
  throw CallError("no operation of this name: " + operation);
}

}  // namespace

NB_MODULE(_cpu, module) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const CallError& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });
  module.def("handlers", &handlers, "FFI handlers by the name of the operation.");
  module.def("cpu_operations", &cpu_operations, "The operations with a handler on the CPU alone.");
  module.def("workspace_bytes", &workspace_bytes, nb::arg("operation"), nb::arg("operands"), nb::arg("results"),
             nb::arg("attributes"),
             "Bytes of scratch memory of the CUDA handler; operands and results are (dtype name, shape) pairs.");
  module.def("signatures", &signatures,
             "By the name of the operation: the names of its operands and results in order, and of the attributes that "
             "kernels read, each with the enumeration that it is of, or 'flag'.");
  module.def("enumerations", &enumerations, "By its name: an enumeration's values from 0 on.");
  module.def("tile_sizes", &tile_sizes, "By what is cut into tiles: the sizes of these, on both platforms, for tests.");
  module.attr("build") = MGPU_BUILD;
  module.attr("ffi_api_version") = nb::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
}

}  // namespace mgpu
