// What this process has made for each key: compiled kernels, or functions read from data. Kernels are never unloaded,
// because a program may still run them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

namespace mgpu::compiled {

template <typename Kernels>
class Registry {
 public:
  // The first thread to ask for a key calls `make`, while others that
  // ask for this key wait. After an error, the next thread tries again.
  const Kernels& get(const std::string& key, const std::function<Kernels()>& make) {
    Entry* entry = nullptr;
    {
      const std::shared_lock lock(mutex_);
      const auto found = entries_.find(key);
      if (found != entries_.end()) entry = found->second.get();
    }
    if (!entry) {
      const std::unique_lock lock(mutex_);
      auto& slot = entries_[key];
      if (!slot) slot = std::make_unique<Entry>();
      entry = slot.get();
    }
    std::call_once(entry->once, [&] { entry->kernels = make(); });
    return entry->kernels;
  }

 private:
  struct Entry {
    std::once_flag once;
    Kernels kernels;
  };
  std::shared_mutex mutex_;
  std::map<std::string, std::unique_ptr<Entry>> entries_;
};

}  // namespace mgpu::compiled
