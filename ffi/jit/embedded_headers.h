// The project's headers as text, by their include names. cmake/embed_headers.cmake embeds those that a library needs to
// compile functions.
#pragma once

#include <string>
#include <vector>

namespace mgpu::compiled {

struct EmbeddedHeader {
  const char* name;
  const char* text;
};
const std::vector<EmbeddedHeader>& embedded_headers();
std::string embedded_headers_digest();

}  // namespace mgpu::compiled
