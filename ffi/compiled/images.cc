#include "compiled/images.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace mgpu::compiled {

namespace {

namespace fs = std::filesystem;

std::atomic<int> compiled{0}, read_back{0};

std::optional<fs::path> cache_folder() {
  if (const char* const given = std::getenv("MGPU_CACHE_DIR")) {
    return *given ? std::optional<fs::path>(given) : std::nullopt;
  }
  if (const char* const base = std::getenv("XDG_CACHE_HOME"); base && *base) return fs::path(base) / "jax_mgpu";
  if (const char* const home = std::getenv("HOME"); home && *home) return fs::path(home) / ".cache" / "jax_mgpu";
  return std::nullopt;
}

uint64_t hash_of(std::string_view text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325u ^ seed;
  for (const char letter : text) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  return hash;
}

fs::path cache_file(const fs::path& folder, const std::string& key) {
  char name[48];
  std::snprintf(name, sizeof(name), "%016llx%016llx.kernel", static_cast<unsigned long long>(hash_of(key, 0)),
                static_cast<unsigned long long>(hash_of(key, 0x9e3779b97f4a7c15u)));
  return folder / name;
}

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

std::optional<Image> read_file(const fs::path& path, const std::string& key, size_t names) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::nullopt;
  const std::string content{std::istreambuf_iterator<char>(stream), {}};
  std::string_view rest = content;
  std::string text, digest;
  Image image;
  // What is cut off or changed is not there.
  if (!take_text(rest, digest) || digest != std::to_string(hash_of(rest, 0))) return std::nullopt;
  if (!take_text(rest, text) || text != key) return std::nullopt;
  for (size_t i = 0; i < names; ++i) {
    if (!take_text(rest, image.names.emplace_back())) return std::nullopt;
  }
  if (!take_text(rest, image.code)) return std::nullopt;
  std::error_code error;
  fs::last_write_time(path, fs::file_time_type::clock::now(), error);
  ++read_back;
  return image;
}

void drop_oldest(const fs::path& folder) {
  const char* const given = std::getenv("MGPU_CACHE_BYTES");
  const uint64_t limit = given ? std::strtoull(given, nullptr, 10) : uint64_t{256} << 20;
  struct File {
    fs::file_time_type used;
    uint64_t bytes;
    fs::path path;
  };
  std::vector<File> files;
  uint64_t total = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".kernel") continue;
    const File file{entry.last_write_time(error), entry.file_size(error), entry.path()};
    if (error) continue;  // another process dropped it
    files.push_back(file);
    total += file.bytes;
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.used < b.used; });
  for (const File& file : files) {
    if (total <= limit) break;
    fs::remove(file.path, error);
    total -= file.bytes;
  }
}

// A folder that cannot be written to costs the next process the compilation, and nothing else.
void write_file(const fs::path& path, const std::string& key, const Image& image) {
  std::string body;
  put_text(body, key);
  for (const std::string& name : image.names) put_text(body, name);
  put_text(body, image.code);
  std::string file;
  put_text(file, std::to_string(hash_of(body, 0)));
  std::error_code error;
  if (fs::create_directories(path.parent_path(), error)) {
    fs::permissions(path.parent_path(), fs::perms::owner_all, error);
  }
  const fs::path part = path.string() + "." + std::to_string(getpid());
  {
    std::ofstream stream(part, std::ios::binary);
    stream << file << body;
    if (!stream.flush()) {
      fs::remove(part, error);
      return;
    }
  }
  fs::rename(part, path, error);
  if (error) fs::remove(part, error);
  drop_oldest(path.parent_path());
}

}  // namespace

std::string source_file(std::string_view header, std::string_view function) {
  std::string text = "#include \"";
  text.append(header).append("\"\n#include \"function/operator.h\"\n#include \"function/primitives.h\"\n");
  return text.append("namespace mgpu::function {\n").append(function).append("}\n");
}

std::optional<Image> read_image(const std::string& key, size_t names) {
  const auto folder = cache_folder();
  return folder ? read_file(cache_file(*folder, key), key, names) : std::nullopt;
}

void keep_image(const std::string& key, const Image& image) {
  ++compiled;
  if (const auto folder = cache_folder()) write_file(cache_file(*folder, key), key, image);
}

std::pair<int, int> image_counts() { return {compiled, read_back}; }

}  // namespace mgpu::compiled
