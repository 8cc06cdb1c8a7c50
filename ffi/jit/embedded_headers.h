// The project's headers as text, by the names that they include each other by: cmake/embed_headers.cmake writes those
// that a library compiles functions with into it.
#pragma once

#include <string>
#include <vector>

namespace mgpu::compiled {

struct EmbeddedHeader {
  const char* name;
  const char* text;
};
const std::vector<EmbeddedHeader>& embedded_headers();
// Differs where any of them does.
std::string embedded_headers_digest();

}  // namespace mgpu::compiled
