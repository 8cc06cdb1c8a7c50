// The Python module `_kernels`: opens a library of kernels, reads its table (runtime/library.h), and runs eager calls.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/eager_calls.h"
#include "runtime/library.h"
#include "runtime/plan.h"

namespace nb = nanobind;

namespace mgpu {
namespace {

using Arrays = std::vector<std::pair<std::string, std::vector<int64_t>>>;  // the name of a type, and a shape
using AttributeMap = std::map<std::string, int64_t>;
using TraitValues = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // in the order of `Traits`

template <typename Item, typename Make>
nb::list list_of(const List<Item>& items, Make make) {
  nb::list list;
  for (const Item& item : items) list.append(make(item));
  return list;
}

nb::list names_of(const List<const char*>& names) {
  return list_of(names, [](const char* name) { return nb::str(name); });
}

template <typename Answer>
Answer answer_of(const Result<Answer>& result) {
  if (result.error) throw nb::value_error(result.error);
  return result.answer;
}

// A PlainCall points into its constructor's arguments.
class PlainCall {
 public:
  PlainCall(const std::string& operation, const Arrays& operands, const Arrays& results,
            const AttributeMap& attributes) {
    for (const Arrays* arrays : {&operands, &results}) {
      for (const auto& [dtype, shape] : *arrays) {
        arrays_.push_back({dtype.c_str(), {shape.data(), static_cast<int64_t>(shape.size())}});
      }
    }
    for (const auto& [name, value] : attributes) values_.push_back({name.c_str(), value});
    const auto split = static_cast<int64_t>(operands.size()), all = static_cast<int64_t>(arrays_.size());
    entry_ = {operation.c_str(),
              {arrays_.data(), split},
              {arrays_.data() + split, all - split},
              {values_.data(), static_cast<int64_t>(values_.size())}};
  }
  const CallEntry& entry() const { return entry_; }

 private:
  std::vector<ArrayEntry> arrays_;
  std::vector<AttributeValue> values_;
  CallEntry entry_;
};

class Library {
 public:
  explicit Library(const std::filesystem::path& path) : path_(path) {
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: XLA keeps its handlers
    if (!handle) throw nb::import_error((path.string() + " cannot be loaded: " + dlerror()).c_str());
    const auto find = reinterpret_cast<decltype(&jax_mgpu_library)>(dlsym(handle, "jax_mgpu_library"));
    table_ = find ? find() : nullptr;
    if (!table_ || table_->bytes != sizeof(LibraryTable)) {
      throw nb::import_error((path.string() + " is of another version of jax_mgpu").c_str());
    }
    for (const FactEntry& fact : table_->facts) description_[fact.name] = fact.text;
    description_["version"] = table_->version;
    description_["ffi_api_version"] = nb::make_tuple(table_->ffi_api_major, table_->ffi_api_minor);
    description_["signatures"] = signatures();
    description_["enumerations"] = enumerations();
  }

  const std::filesystem::path& path() const { return path_; }
  const nb::dict& description() const { return description_; }

  nb::dict handlers() const {
    nb::dict all;
    for (const HandlerEntry& entry : table_->handlers) {
      if (!all.contains(entry.operation)) all[entry.operation] = nb::dict();
      all[entry.operation][entry.stage] = nb::capsule(entry.address);
    }
    return all;
  }

  nb::dict tile_sizes() const {
    nb::dict all;
    for (const TileSizesEntry& entry : table_->tile_sizes) {
      all[entry.what] = list_of(entry.sizes, [](int64_t size) { return nb::int_(size); });
    }
    return all;
  }

  // Lists for each kernel its name, its shapes, and whether it is optional.
  nb::list kernel_shapes() const {
    return list_of(table_->kernel_shapes, [](const KernelShapesEntry& kernel) {
      const nb::list shapes = list_of(
          kernel.shapes, [](const KernelShapeEntry& shape) { return nb::make_tuple(shape.bytes, shape.least_limit); });
      return nb::make_tuple(kernel.kernel, shapes, kernel.is_optional);
    });
  }

  int64_t workspace_bytes(const std::string& operation, const Arrays& operands, const Arrays& results,
                          const AttributeMap& attributes) const {
    return answer_of(asked(table_->workspace_bytes)(PlainCall(operation, operands, results, attributes).entry()));
  }

  nb::dict plan(const std::string& operation, const Arrays& operands, const Arrays& results,
                const AttributeMap& attributes, const TraitValues& traits) const {
    const auto [multiprocessors, shared_memory, l2_cache, capability] = traits;
    const PlainCall call(operation, operands, results, attributes);
    const PlanEntry plan =
        answer_of(asked(table_->plan)(call.entry(), {multiprocessors, shared_memory, l2_cache, capability}));
    nb::dict tiles, all;
    for (const AttributeValue& tile : plan.tiles) tiles[tile.name] = tile.value;
    all["variant"] = plan.variant;
    all["condition"] = plan.condition;
    all["tiles"] = tiles;
    all["passes"] = plan.passes;
    all["workspace"] = plan.workspace;
    all["scratch"] = plan.scratch;
    return all;
  }

  const char* function_source(const std::string& data) const {
    return answer_of(asked(table_->function_source)(data.c_str()));
  }

  const char* compiler_problem() const { return asked(table_->compiler_problem)(); }

  void set_compiler_folders(const std::vector<std::string>& folders) const {
    std::vector<const char*> texts;
    for (const std::string& folder : folders) texts.push_back(folder.c_str());
    asked(table_->set_compiler_folders)({texts.data(), static_cast<int64_t>(texts.size())});
  }

  int64_t driver_version() const { return asked(table_->driver_version)(); }

  nb::tuple compiled_functions() const {
    int64_t compiled = 0, read = 0;
    asked(table_->compiled_functions)(compiled, read);
    return nb::make_tuple(compiled, read);
  }

 private:
  // The base library lacks functions of the CUDA library, and the other way round.
  template <typename Function>
  Function asked(Function function) const {
    if (!function) throw nb::attribute_error((path_.string() + " has no such function").c_str());
    return function;
  }

  nb::dict signatures() const {
    nb::dict all;
    for (const SignatureEntry& entry : table_->signatures) {
      nb::dict attributes, signature;
      for (const AttributeEntry& attribute : entry.attributes) attributes[attribute.name] = attribute.kind;
      signature["operands"] = names_of(entry.operands);
      signature["results"] = names_of(entry.results);
      signature["attributes"] = attributes;
      all[entry.operation] = signature;
    }
    return all;
  }

  nb::dict enumerations() const {
    nb::dict all;
    for (const EnumerationEntry& entry : table_->enumerations) all[entry.name] = names_of(entry.values);
    return all;
  }

  std::filesystem::path path_;
  const LibraryTable* table_;
  nb::dict description_;
};

}  // namespace
}  // namespace mgpu

NB_MODULE(_kernels, module) {
  using namespace nb::literals;
  using mgpu::EagerCalls;
  using mgpu::Library;
  nb::set_leak_warnings(false);  // an open library stays for the life of the process
  module.doc() = "Opens the libraries of kernels, reads their tables, and runs eager calls.";

  if (const nb::handle known = nb::type<Library>();
      known.is_valid()) {  // a second import, after the package was dropped
    module.attr("Library") = known;
    module.attr("EagerCalls") = nb::type<EagerCalls>();
    return;
  }
  nb::class_<EagerCalls>(module, "EagerCalls", "The calls of a public function outside of programs.")
      .def(nb::init<nb::object, nb::object, nb::object, const nb::tuple&, nb::object, nb::object, const nb::tuple&>(),
           "program"_a, "other"_a, "known"_a, "are_settings"_a, "settings"_a, "named_tuple"_a.none(), "common"_a)
      .def("run", &EagerCalls::run, "Runs a call, given its positional and named arguments.");
  nb::class_<Library>(module, "Library", "A plain shared library of kernels, the same for every Python.")
      .def(nb::init<const std::filesystem::path&>(), "path"_a)
      .def_prop_ro("path", &Library::path)
      .def_prop_ro(
          "description", &Library::description,
          "Its version, that of XLA's FFI, how it was built; the signatures of operations, by name; the names of "
          "each enumeration's values, from 0 on.")
      .def("handlers", &Library::handlers, nb::sig("def handlers(self) -> dict[str, dict[str, object]]"),
           "The FFI handlers as capsules, by operation and stage.")
      .def("tile_sizes", &Library::tile_sizes, nb::sig("def tile_sizes(self) -> dict[str, list[int]]"),
           "The tile sizes of each dimension that is cut into tiles.")
      .def("kernel_shapes", &Library::kernel_shapes,
           nb::sig("def kernel_shapes(self) -> list[tuple[str, list[tuple[int, int]], bool]]"),
           "For each kernel that needs shared memory on request: (name, [(bytes, least limit of a device)], is "
           "optional).")
      .def("workspace_bytes", &Library::workspace_bytes, "operation"_a, "operands"_a, "results"_a, "attributes"_a,
           "Bytes of scratch memory of the CUDA handler.")
      .def("plan", &Library::plan, "operation"_a, "operands"_a, "results"_a, "attributes"_a, "traits"_a,
           "What runs for a call on a CUDA device of these traits.")
      .def("function_source", &Library::function_source, "data"_a,
           "The C++ source that is made from a function's data.")
      .def("compiler_problem", &Library::compiler_problem, "Why NVRTC cannot be used; empty if it can.")
      .def("set_compiler_folders", &Library::set_compiler_folders, "folders"_a,
           "Sets the folders in which NVRTC is looked for.")
      .def("driver_version", &Library::driver_version,
           "The CUDA version of the driver, such as 12040; 0 without a driver.")
      .def("compiled_functions", &Library::compiled_functions,
           nb::sig("def compiled_functions(self) -> tuple[int, int]"),
           "How many functions were compiled, and how many were read from disk.");
}
