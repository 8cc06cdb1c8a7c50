// Kernels that are compiled while the program runs, by a C++ compiler from the project's own headers, which the library
// carries.
#pragma once

#include <string>
#include <string_view>

#include "cpu/compiled/kernel.h"

namespace mgpu::cpu {

// Why nothing can be compiled; nothing where all is well.
std::string compiler_problem();

// The kernel of a source that defines `struct Function`, for the problem `kernel`<`arguments`> of `header`. The library
// lays it out as `kernel`<`any_arguments`>. Compiles it, or reads it from the disk, when it is first asked for. It
// stays.
CompiledKernel kernel_of(std::string_view source, std::string_view header, std::string_view kernel,
                         std::string_view arguments, std::string_view any_arguments);

}  // namespace mgpu::cpu
