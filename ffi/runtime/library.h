// What a library of kernels gives to Python, which calls it through ctypes (jax_mgpu/_src/core/library.py). The
// interface is plain C and knows nothing of Python: so one library serves every version of Python, with a global lock
// or without.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/operations.h"
#include "runtime/signature.h"

#define MGPU_EXPORT extern "C" __attribute__((visibility("default")))

namespace mgpu {

// A stage of the FFI handler of an operation. A table of them ends with an operation of null.
struct HandlerEntry {
  const char* operation;
  const char* stage;  // as jax.ffi.register_ffi_target calls it
  void* address;
};

// Hands out text that stays until the same thread asks for the next.
inline const char* keep(std::string text) {
  static thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

// JSON, as much of it as is needed.
inline std::string json(std::string_view text) {
  std::string quoted(1, '"');
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(letter) < ' ' ? ' ' : letter;
  }
  quoted += '"';
  return quoted;
}
inline std::string json(const char* text) { return json(std::string_view(text)); }
inline std::string json(const std::string& text) { return json(std::string_view(text)); }
inline std::string json(int64_t number) { return std::to_string(number); }

// A list or an object, one piece after the other.
class JsonParts {
 public:
  explicit JsonParts(char opening) : text_(1, opening) {}
  JsonParts& add(std::string_view part) {
    if (text_.size() > 1) text_ += ',';
    text_.append(part);
    return *this;
  }
  JsonParts& add(std::string_view name, std::string_view value) {
    add(json(name));
    text_ += ':';
    text_.append(value);
    return *this;
  }
  std::string done(char closing) {
    text_ += closing;
    return std::move(text_);
  }

 private:
  std::string text_;
};

// Of any range, by what makes JSON of an item.
template <typename Range, typename Item>
std::string json_list(const Range& range, Item item) {
  JsonParts parts('[');
  for (const auto& each : range) parts.add(item(each));
  return parts.done(']');
}

// Of names and JSON.
inline std::string json_object(const std::map<std::string, std::string>& members) {
  JsonParts parts('{');
  for (const auto& [name, value] : members) parts.add(name, value);
  return parts.done('}');
}

template <typename Item, size_t kMost>
std::string json_names(const Item (&items)[kMost]) {
  JsonParts parts('[');
  for (size_t i = 0; i < named_count(items); ++i) parts.add(json(name_of(items[i])));
  return parts.done(']');
}

inline std::string json_pair(int64_t first, int64_t second) {
  return JsonParts('[').add(json(first)).add(json(second)).done(']');
}

// By the name of the operation, on whatever platforms its kernels are: the names of its operands and results in order,
// and of the attributes that kernels read, each with the enumeration that it is of, or "flag".
inline std::string json_signatures() {
  std::map<std::string, std::string> table;
  const auto add = [&](const char* operation, const Signature& of) {
    std::map<std::string, std::string> attributes;
    for (const Signature::Attribute& attribute : of.attributes) {
      if (attribute.name.empty()) break;
      attributes[std::string(attribute.name)] = json(attribute.values ? attribute.values->name : "flag");
    }
    table[operation] = json_object({{"operands", json_names(of.operands)},
                                    {"results", json_names(of.results)},
                                    {"attributes", json_object(attributes)}});
  };
#define MGPU_SIGNATURE(name) add(#name, signature::name);
  MGPU_OPERATIONS(MGPU_SIGNATURE)
  MGPU_CUDA_OPERATIONS(MGPU_SIGNATURE)
#undef MGPU_SIGNATURE
  return json_object(table);
}

// By its name: an enumeration's values from 0 on.
inline std::string json_enumerations() {
  std::map<std::string, std::string> table;
  const auto add = [&](const Signature& of) {
    for (const Signature::Attribute& attribute : of.attributes) {
      if (attribute.values && attribute.values != &kNumber)
        table[std::string(attribute.values->name)] = json_names(attribute.values->values);
    }
  };
#define MGPU_SIGNATURE(name) add(signature::name);
  MGPU_OPERATIONS(MGPU_SIGNATURE)
  MGPU_CUDA_OPERATIONS(MGPU_SIGNATURE)
#undef MGPU_SIGNATURE
  return json_object(table);
}

// What each library says of itself; `own` is what only this one has. Python reads it when it loads the library.
inline std::string json_description(std::map<std::string, std::string> own, int ffi_api_major, int ffi_api_minor) {
  own["version"] = json(MGPU_VERSION);
  own["ffi_api_version"] = json_pair(ffi_api_major, ffi_api_minor);
  own["signatures"] = json_signatures();
  own["enumerations"] = json_enumerations();
  return json_object(own);
}

}  // namespace mgpu

// Each library has these two. The first gives null where it knows nothing of that name.
MGPU_EXPORT const char* jax_mgpu_describe(const char* what);
MGPU_EXPORT const mgpu::HandlerEntry* jax_mgpu_handlers();
