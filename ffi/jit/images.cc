#include "jit/images.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace mgpu::compiled {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEntry = ".kernel";
constexpr time_t kLeftoverSeconds = 3600;

std::atomic<int> compiled{0}, read_back{0};

std::optional<fs::path> cache_folder() {
  if (const char* const given = std::getenv("MGPU_CACHE_DIR")) {
    return *given ? std::optional<fs::path>(given) : std::nullopt;
  }
  if (const char* const base = std::getenv("XDG_CACHE_HOME"); base && *base) return fs::path(base) / "jax_mgpu";
  if (const char* const home = std::getenv("HOME"); home && *home) return fs::path(home) / ".cache" / "jax_mgpu";
  return std::nullopt;
}

uint64_t most_bytes() {
  const char* const given = std::getenv("MGPU_CACHE_BYTES");
  if (!given || !*given) return uint64_t{256} << 20;
  uint64_t bytes = 0;
  const auto [end, error] = std::from_chars(given, given + std::strlen(given), bytes);
  if (error == std::errc{} && !*end) return bytes;
  throw std::runtime_error("MGPU_CACHE_BYTES: expected a number of bytes, such as 268435456, got \"" +
                           std::string(given) + "\"");
}

uint64_t hash_of(std::string_view text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u ^ seed;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  return hash;
}

std::string hexadecimal(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
  return text;
}

std::string entry_name(const std::string& key) {
  return hexadecimal(hash_of(key, 0)) + hexadecimal(hash_of(key, 0x9e3779b97f4a7c15u)).append(kEntry);
}

// ---- The contents of an entry.

void put_text(std::string& file, std::string_view text) {
  const uint64_t size = text.size();
  file.append(reinterpret_cast<const char*>(&size), sizeof(size)).append(text);
}

bool take_text(std::string_view& file, std::string& text) {
  uint64_t size = 0;
  if (file.size() < sizeof(size)) return false;
  std::copy_n(file.data(), sizeof(size), reinterpret_cast<char*>(&size));
  file.remove_prefix(sizeof(size));
  if (file.size() < size) return false;
  text = file.substr(0, size);
  file.remove_prefix(size);
  return true;
}

std::string content_of(const std::string& key, const Image& image) {
  std::string body, content;
  put_text(body, key);
  for (const std::string& name : image.names) put_text(body, name);
  put_text(body, image.code);
  put_text(content, std::to_string(hash_of(body, 0)));
  return content + body;
}

// Returns nothing if a part was cut off or changed, or if the key differs.
std::optional<Image> image_in(std::string_view content, const std::string& key, size_t names) {
  std::string text, digest;
  Image image;
  if (!take_text(content, digest) || digest != std::to_string(hash_of(content, 0))) return std::nullopt;
  if (!take_text(content, text) || text != key) return std::nullopt;
  for (size_t i = 0; i < names; ++i) {
    if (!take_text(content, image.names.emplace_back())) return std::nullopt;
  }
  if (!take_text(content, image.code)) return std::nullopt;
  return image;
}

// ---- Files. Checks look at the opened file, because its name may name another file by then.

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (*this) close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&&) = delete;

  explicit operator bool() const { return number_ >= 0; }
  int number() const { return number_; }

 private:
  int number_;
};

// Whether the file or folder is this user's, and its mode lets no other user write.
bool is_own(const struct stat& found) {
  return found.st_uid == geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// The first call says why the cache is not used.
void warn(const fs::path& folder, const std::string& why) {
  static std::once_flag once;
  std::call_once(once, [&] {
    std::fprintf(
        stderr,
        "jax_mgpu: warning: compiled functions are not kept on the disk: %s: %s. Set MGPU_CACHE_DIR to another "
        "folder, or to nothing if you want no cache.\n",
        folder.c_str(), why.c_str());
  });
}

// With `makes`, creates a missing folder first.
Descriptor open_folder(bool makes) {
  const auto folder = cache_folder();
  if (!folder) return Descriptor(-1);
  if (makes) {
    std::error_code ignored;  // opening reports it
    fs::create_directories(folder->parent_path(), ignored);
    mkdir(folder->c_str(), S_IRWXU);
  }
  Descriptor opened(open(folder->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat found;
  if (!opened || fstat(opened.number(), &found) != 0) {
    if (makes || errno != ENOENT) warn(*folder, std::strerror(errno));
  } else if (found.st_uid != geteuid()) {
    warn(*folder, "it belongs to another user");
  } else if (!is_own(found)) {
    warn(*folder, "other users may write to it: chmod go-w " + folder->string());
  } else {
    return opened;
  }
  return Descriptor(-1);
}

// Opens a regular file of this user. It does not follow links or wait for FIFOs.
Descriptor open_file(const Descriptor& folder, const char* name, struct stat& found) {
  Descriptor file(openat(folder.number(), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  const bool is_good = file && fstat(file.number(), &found) == 0 && S_ISREG(found.st_mode) && is_own(found);
  return is_good ? std::move(file) : Descriptor(-1);
}

bool read_all(const Descriptor& file, std::string& content) {
  for (size_t begin = 0; begin < content.size();) {
    const ssize_t bytes = read(file.number(), content.data() + begin, content.size() - begin);
    if (bytes == 0 || (bytes < 0 && errno != EINTR)) return false;
    begin += std::max<ssize_t>(bytes, 0);
  }
  return true;
}

bool write_all(const Descriptor& file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t bytes = write(file.number(), content.data(), content.size());
    if (bytes < 0 && errno != EINTR) return false;
    content.remove_prefix(std::max<ssize_t>(bytes, 0));
  }
  return true;
}

// Writes an entry under an unpredictable name, then renames it, so that other processes see all of it or nothing.
bool write_entry(const Descriptor& folder, const std::string& name, std::string_view content) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) return false;
  const std::string part = name + "." + hexadecimal(random);
  const Descriptor file(
      openat(folder.number(), part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file) return false;
  if (write_all(file, content) && renameat(folder.number(), part.c_str(), folder.number(), name.c_str()) == 0) {
    return true;
  }
  unlinkat(folder.number(), part.c_str(), 0);
  return false;
}

// Drops the least recently used entries beyond `limit` bytes, and parts that a process left unfinished.
void drop_oldest(const Descriptor& folder, uint64_t limit) {
  struct Entry {
    timespec used;
    uint64_t bytes;
    std::string name;
  };
  std::vector<Entry> entries;
  uint64_t total = 0;
  // A separate descriptor, as all duplicates of a directory's descriptor share one position.
  const int number = openat(folder.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fdopendir(number), closedir);
  if (!listing) {
    const Descriptor closed(number);
    return;
  }
  while (const dirent* const next = readdir(listing.get())) {
    const std::string_view name(next->d_name);
    const size_t suffix = name.find(kEntry);
    struct stat found;
    if (suffix == std::string_view::npos || !open_file(folder, next->d_name, found)) continue;
    if (suffix + kEntry.size() < name.size()) {
      if (std::time(nullptr) - found.st_mtime > kLeftoverSeconds) unlinkat(folder.number(), next->d_name, 0);
      continue;
    }
    entries.push_back({found.st_mtim, static_cast<uint64_t>(found.st_size), std::string(name)});
    total += found.st_size;
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const Entry& entry : entries) {
    if (total <= limit) break;
    unlinkat(folder.number(), entry.name.c_str(), 0);
    total -= entry.bytes;
  }
}

}  // namespace

std::string source_file(std::string_view header, std::string_view function) {
  std::string text = "#include \"";
  text.append(header).append("\"\n#include \"function/operator.h\"\n#include \"function/primitives.h\"\n");
  return text.append("namespace mgpu::function {\n").append(function).append("}\n");
}

std::optional<Image> read_image(const std::string& key, size_t names) {
  const uint64_t limit = most_bytes();
  const Descriptor folder = open_folder(false);
  if (!folder) return std::nullopt;
  struct stat found;
  const Descriptor file = open_file(folder, entry_name(key).c_str(), found);
  if (!file || static_cast<uint64_t>(found.st_size) > limit) return std::nullopt;
  std::string content(found.st_size, '\0');
  if (!read_all(file, content)) return std::nullopt;
  std::optional<Image> image = image_in(content, key, names);
  if (!image) return std::nullopt;
  futimens(file.number(), nullptr);
  ++read_back;
  return image;
}

void keep_image(const std::string& key, const Image& image) {
  ++compiled;
  const uint64_t limit = most_bytes();
  const std::string content = content_of(key, image);
  if (content.size() > limit) return;
  const Descriptor folder = open_folder(true);
  if (!folder) return;
  drop_oldest(folder, limit - content.size());  // first, because old entries may fill the disk
  write_entry(folder, entry_name(key), content);
}

std::pair<int, int> image_counts() { return {compiled, read_back}; }

}  // namespace mgpu::compiled
