// Makes the table of a library. Names in signatures have no terminating null, so they are copied.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "runtime/library.h"
#include "runtime/operations.h"
#include "runtime/signature.h"

namespace mgpu {

// Both libraries have the same operations and enumerations.
class Description {
 public:
  LibraryTable table{};

  Description(int64_t ffi_api_major, int64_t ffi_api_minor) {
    table.bytes = sizeof(LibraryTable);
    table.version = MGPU_VERSION;
    table.ffi_api_major = ffi_api_major;
    table.ffi_api_minor = ffi_api_minor;
#define MGPU_SIGNATURE(name) add_signature(#name, signature::name);
    MGPU_OPERATIONS(MGPU_SIGNATURE)
    MGPU_CUDA_OPERATIONS(MGPU_SIGNATURE)
#undef MGPU_SIGNATURE
    for (const auto& [name, values] : enumerations_by_name_) enumerations_.push_back({text(name), values});
    table.signatures = list(signatures_);
    table.enumerations = list(enumerations_);
  }

  const char* text(std::string_view view) { return texts_.emplace_back(view).c_str(); }

  template <typename Item>
  static List<Item> list(const std::vector<Item>& items) {
    return {items.data(), static_cast<int64_t>(items.size())};
  }

  template <typename Range>
  List<int64_t> sizes(const Range& range) {
    return list(sizes_.emplace_back(range.begin(), range.end()));
  }

 private:
  template <typename Item, size_t kCapacity>
  List<const char*> names(const Item (&items)[kCapacity]) {
    std::vector<const char*>& kept = names_.emplace_back();
    for (size_t i = 0; i < named_count(items); ++i) kept.push_back(text(name_of(items[i])));
    return list(kept);
  }

  void add_signature(const char* operation, const Signature& signature) {
    std::vector<AttributeEntry>& attributes = attributes_.emplace_back();
    for (size_t i = 0; i < named_count(signature.attributes); ++i) {
      const Signature::Attribute& attribute = signature.attributes[i];
      const std::string_view kind = attribute.values ? attribute.values->name : "flag";
      attributes.push_back({text(attribute.name), text(kind)});
      if (attribute.values && attribute.values != &kNumber && !enumerations_by_name_.contains(kind)) {
        enumerations_by_name_[kind] = names(attribute.values->values);
      }
    }
    signatures_.push_back({operation, names(signature.operands), names(signature.results), list(attributes)});
  }

  std::deque<std::string> texts_;
  std::deque<std::vector<const char*>> names_;
  std::deque<std::vector<AttributeEntry>> attributes_;
  std::deque<std::vector<int64_t>> sizes_;
  std::vector<SignatureEntry> signatures_;
  std::vector<EnumerationEntry> enumerations_;
  std::map<std::string_view, List<const char*>> enumerations_by_name_;
};

}  // namespace mgpu
