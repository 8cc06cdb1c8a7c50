// Kernels that are compiled while the program runs, by NVRTC from the project's own headers, which the module carries.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// cuda.h's, which the module over the kernels does not need for the rest.
struct CUkern_st;
struct CUstream_st;

namespace mgpu::cuda {

// Folders to look for NVRTC in, before those of the loader.
void set_compiler_folders(const std::vector<std::string>& folders);
std::string compiler_problem();

// A kernel as the driver knows it: of no context, so one for all devices of an architecture.
using Kernel = CUkern_st*;

// The kernels, by their C++ names, of a source that defines `struct Function`, after including `header`, for the
// architecture of a device. Compiles them, or reads them from the disk, when they are first asked for. They stay.
const std::vector<Kernel>& kernels_of(std::string_view source, std::string_view header,
                                      const std::vector<std::string>& names, int device);

// The devices that kernels are to be made for: one of each architecture.
std::vector<int> distinct_devices();
int current_device();
int64_t shared_limit(int device);

// Launches a kernel; the parameters are those that it was compiled with. `shared` may be all that the device has.
void launch_kernel(Kernel kernel, int64_t blocks, int threads, int64_t shared, CUstream_st* stream,
                   const std::vector<void*>& parameters);
int resident_kernel_blocks(Kernel kernel, int threads, int64_t shared, int64_t work);

}  // namespace mgpu::cuda
