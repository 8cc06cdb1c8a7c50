// Compiles kernels while the program runs, by NVRTC, from the project's own headers, which the library contains.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// Types of cuda.h, which handlers do not include.
struct CUkern_st;
struct CUstream_st;

namespace mgpu::cuda {

// Sets the folders in which NVRTC is looked for before the loader's folders.
void set_compiler_folders(const std::vector<std::string>& folders);
// Why NVRTC cannot be used; empty if it can.
std::string compiler_problem();

// A kernel belongs to no context, so all devices of an architecture share it.
using Kernel = CUkern_st*;

// The kernels of these C++ names, for the architecture of a device. `header` defines them, and `source` the `struct
// Function` that they run. They are compiled or read from the disk on first request, and stay loaded.
const std::vector<Kernel>& kernels_of(std::string_view source, std::string_view header,
                                      const std::vector<std::string>& names, int device);

// Lists one device of each architecture.
std::vector<int> distinct_devices();
int current_device();
// The bytes of shared memory that a block gets on request.
int64_t shared_limit(int device);

// `shared` is the bytes of a block's dynamic shared memory, at most what the device grants on request.
void launch_kernel(Kernel kernel, int64_t blocks, int threads, int64_t shared, CUstream_st* stream,
                   const std::vector<void*>& parameters);
// As many blocks as the device runs at once, and no more than `work`; at least one.
int resident_kernel_blocks(Kernel kernel, int threads, int64_t shared, int64_t work);

}  // namespace mgpu::cuda
