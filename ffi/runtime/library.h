// The interface of a library of kernels to Python: one table of plain data. A library does not depend on Python, and
// may come from another build than ffi/python/module.cc, which reads it.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace mgpu {

struct Traits;

// Items of the lists in the table live as long as the library.
template <typename Item>
struct List {
  const Item* items = nullptr;
  int64_t count = 0;
  const Item* begin() const { return items; }
  const Item* end() const { return items + count; }
};

struct HandlerEntry {
  const char* operation;
  const char* stage;  // the stage's name in jax.ffi.register_ffi_target
  void* address;
};

// `kind` is the attribute's enumeration, "flag" or "number".
struct AttributeEntry {
  const char* name;
  const char* kind;
};

// Operands and results have the order of the call.
struct SignatureEntry {
  const char* operation;
  List<const char*> operands;
  List<const char*> results;
  List<AttributeEntry> attributes;
};

// `values` count from 0.
struct EnumerationEntry {
  const char* name;
  List<const char*> values;
};

// The sizes of tiles under one name (TileSizes of signature.h), for tests at the edges of tiles.
struct TileSizesEntry {
  const char* what;
  List<int64_t> sizes;
};

// A shape of a kernel that needs more shared memory than devices grant without a request.
struct KernelShapeEntry {
  int64_t bytes;        // the shared memory that a block takes
  int64_t least_limit;  // the shared memory that a device must grant for the shape to be chosen
};
struct KernelShapesEntry {
  const char* kernel;
  List<KernelShapeEntry> shapes;
  bool is_optional;  // another kernel serves if no shape fits
};

struct FactEntry {
  const char* name;
  const char* text;
};

struct ArrayEntry {
  const char* dtype;
  List<int64_t> dimensions;
};
struct AttributeValue {
  const char* name;
  int64_t value;
};
struct CallEntry {
  const char* operation;
  List<ArrayEntry> operands;
  List<ArrayEntry> results;
  List<AttributeValue> attributes;
};

// `PlanReport` of plan.h, and the scratch memory that is enough for any device.
struct PlanEntry {
  const char* variant;
  const char* condition;
  List<AttributeValue> tiles;
  double passes;
  int64_t workspace;
  int64_t scratch;
};

// Texts and lists in an answer stay valid until the same thread asks the same question again.
template <typename Answer>
struct Result {
  Answer answer;
  const char* error;  // null if there is an answer
};

struct LibraryTable {
  int64_t bytes;  // sizeof: a table of another layout is rejected
  const char* version;
  int64_t ffi_api_major, ffi_api_minor;
  List<FactEntry> facts;
  List<HandlerEntry> handlers;
  List<SignatureEntry> signatures;
  List<EnumerationEntry> enumerations;

  // These are null or empty in the CUDA library.
  List<TileSizesEntry> tile_sizes;
  Result<int64_t> (*workspace_bytes)(const CallEntry& call);
  Result<PlanEntry> (*plan)(const CallEntry& call, const Traits& traits);
  Result<const char*> (*function_source)(const char* data);  // the C++ source made from a function's data

  // These are null or empty in the library that is always built.
  List<KernelShapesEntry> kernel_shapes;
  const char* (*compiler_problem)();                             // why NVRTC cannot be used; empty if it can
  void (*set_compiler_folders)(List<const char*> list);          // where NVRTC is looked for
  int64_t (*driver_version)();                                   // the CUDA version of the driver, such as 12040
  void (*compiled_functions)(int64_t& compiled, int64_t& read);  // functions compiled, and read from disk
};

template <typename Answer, typename Make>
Result<Answer> result_of(Make make) {
  static thread_local std::string error;
  try {
    return {make(), nullptr};
  } catch (const std::exception& exception) {
    error = exception.what();
    return {{}, error.c_str()};
  }
}

}  // namespace mgpu

// The only name that a library exports.
extern "C" __attribute__((visibility("default"))) const mgpu::LibraryTable* jax_mgpu_library();
