// What compilers made of functions, on the disk: a file each, whole or not there. MGPU_CACHE_DIR is the folder, empty
// for none; MGPU_CACHE_BYTES how much may lie there, of which the files that were used last stay.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mgpu::compiled {

struct Image {
  std::vector<std::string> names;  // of the kernels in it, where they are found by names
  std::string code;
};

// The file that a compiler is given: the function, as the struct `mgpu::function::Function`, after this header.
std::string source_file(std::string_view header, std::string_view function);

// `key` holds all that an image depends on.
std::optional<Image> read_image(const std::string& key, size_t names);
// Keeps what was just compiled.
void keep_image(const std::string& key, const Image& image);

// How many this process has compiled, and read.
std::pair<int, int> image_counts();

}  // namespace mgpu::compiled
