// The cache of compiled functions on the disk. Each image has one file, which is complete or absent. MGPU_CACHE_DIR
// names the folder; if it is empty, there is no cache. MGPU_CACHE_BYTES limits the folder's bytes: the most recently
// used files stay.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mgpu::compiled {

struct Image {
  std::vector<std::string> names;  // the names by which the driver finds its kernels
  std::string code;
};

// The file that the compiler gets: `header`, and the function as the struct `mgpu::function::Function`.
std::string source_file(std::string_view header, std::string_view function);

// `key` names what the image depends on.
std::optional<Image> read_image(const std::string& key, size_t names);
void keep_image(const std::string& key, const Image& image);

// How many images this process has compiled, and how many it has read.
std::pair<int, int> image_counts();

}  // namespace mgpu::compiled
