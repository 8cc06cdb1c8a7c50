#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <stdexcept>

#include "algorithm/common.h"
#include "jit/compiler.h"
#include "jit/embedded_headers.h"
#include "jit/images.h"
#include "jit/registry.h"
#include "runtime/call.h"

namespace mgpu::cuda {

// Returns a number such as 12040, or 0 if there is no driver.
int driver_version() {
  int version = 0;
  const bool is_there = cudaDriverGetVersion(&version) == cudaSuccess;
  cudaGetLastError();
  return is_there ? version : 0;
}

namespace {

namespace fs = std::filesystem;
using compiled::Image;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// ---- The driver, whose functions are found at run time: the library does not link libcuda.

template <typename Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
  cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  cudaGetLastError();
  if (found != cudaDriverEntryPointSuccess) fail(std::string("the driver has no ") + name);
  return reinterpret_cast<Function>(function);
}

struct Driver {
#define MGPU_DRIVER(name) decltype(&::name) name = driver_function<decltype(&::name)>(#name);
  MGPU_DRIVER(cuGetErrorString)
  MGPU_DRIVER(cuLibraryLoadData)
  MGPU_DRIVER(cuLibraryGetKernel)
  MGPU_DRIVER(cuKernelGetAttribute)
  MGPU_DRIVER(cuKernelSetAttribute)
  MGPU_DRIVER(cuLaunchKernel)
  MGPU_DRIVER(cuOccupancyMaxActiveBlocksPerMultiprocessor)
#undef MGPU_DRIVER

  void check(CUresult status, const char* what) const {
    if (status == CUDA_SUCCESS) return;
    if (status == CUDA_ERROR_OUT_OF_MEMORY) throw DeviceMemoryError();
    const char* text = nullptr;
    cuGetErrorString(status, &text);
    fail(std::string(what) + ": " + (text ? text : "unknown error"));
  }
};

const Driver& driver() {
  static const Driver loaded;
  return loaded;
}

int device_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

int architecture(int device) {
  return 10 * device_attribute(cudaDevAttrComputeCapabilityMajor, device) +
         device_attribute(cudaDevAttrComputeCapabilityMinor, device);
}

// ---- NVRTC, loaded by dlopen: it is needed only to compile functions.

std::vector<std::string>& folders() {
  static std::vector<std::string> list;
  return list;
}

struct Nvrtc {
  using Program = void*;
  int (*version)(int*, int*);
  int (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*add_name)(Program, const char*);
  int (*compile)(Program, int, const char* const*);
  int (*lowered_name)(Program, const char*, const char**);
  int (*log_size)(Program, size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, size_t*);
  int (*cubin)(Program, char*);
  int (*ptx_size)(Program, size_t*);
  int (*ptx)(Program, char*);
  int (*architectures_count)(int*);
  int (*architectures)(int*);
  int major = 0, minor = 0;
  std::vector<int> known;  // architectures

  // In NVRTC 12.1, 12.6 and 12.9, one thread would wait for the other.
  bool compiles_in_threads() const { return major >= 13; }

  static Nvrtc load() {
    const int driver = driver_version() > 0 ? driver_version() : 13000;
    std::vector<std::string> places = folders();
    places.insert(places.end(), {"", "/usr/local/cuda/lib64", "/usr/local/cuda/lib"});
    for (const std::string& folder : places) {
      for (int release = driver / 1000; release >= 12; --release) {
        const std::string name = "libnvrtc.so." + std::to_string(release);
        const fs::path path = folder.empty() ? fs::path(name) : fs::path(folder) / name;
        std::error_code error;
        if (!folder.empty() && !fs::exists(path, error)) continue;
        // NVRTC opens its builtins by name, which works if they are already loaded.
        for (const auto& file : folder.empty() ? fs::directory_iterator() : fs::directory_iterator(folder, error)) {
          const std::string sibling = file.path().filename();
          if (sibling.rfind("libnvrtc-builtins.so." + std::to_string(release), 0) == 0) {
            dlopen(file.path().c_str(), RTLD_NOW | RTLD_GLOBAL);
          }
        }
        if (void* library = dlopen(path.c_str(), RTLD_NOW)) return Nvrtc(library);
      }
    }
    fail("NVRTC 12 or 13 is missing: pip install nvidia-cuda-nvrtc");
  }

 private:
  explicit Nvrtc(void* library) {
    const auto find = [&](auto& function, const char* name) {
      void* const symbol = dlsym(library, name);
      if (!symbol) fail(std::string("NVRTC is too old: it has no ") + name);
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
    };
    find(version, "nvrtcVersion");
    find(create, "nvrtcCreateProgram");
    find(destroy, "nvrtcDestroyProgram");
    find(add_name, "nvrtcAddNameExpression");
    find(compile, "nvrtcCompileProgram");
    find(lowered_name, "nvrtcGetLoweredName");
    find(log_size, "nvrtcGetProgramLogSize");
    find(log, "nvrtcGetProgramLog");
    find(cubin_size, "nvrtcGetCUBINSize");
    find(cubin, "nvrtcGetCUBIN");
    find(ptx_size, "nvrtcGetPTXSize");
    find(ptx, "nvrtcGetPTX");
    find(architectures_count, "nvrtcGetNumSupportedArchs");
    find(architectures, "nvrtcGetSupportedArchs");
    version(&major, &minor);
    int count = 0;
    architectures_count(&count);
    known.resize(count);
    architectures(known.data());
  }
};

const Nvrtc& nvrtc() {
  static const Nvrtc loaded = Nvrtc::load();
  return loaded;
}

// ---- Compiled images: a cubin, or PTX if NVRTC is older than the device, and the kernels' names in it.

struct Request {
  std::string source;
  std::vector<std::string> names;
  std::string option;

  // The key names what the image depends on.
  std::string key() const {
    std::string text = "NVRTC " + std::to_string(nvrtc().major) + "." + std::to_string(nvrtc().minor) + ", headers " +
                       compiled::embedded_headers_digest() + ", " + option;
    for (const std::string& name : names) text += "\n" + name;
    return text + "\n" + source;
  }
};

Image compile(const Request& request) {
  const Nvrtc& nvrtc = cuda::nvrtc();
  Nvrtc::Program program = nullptr;
  std::vector<const char*> names, texts;
  for (const compiled::EmbeddedHeader& header : compiled::embedded_headers())
    names.push_back(header.name), texts.push_back(header.text);
  if (nvrtc.create(&program, request.source.c_str(), "function.cu", static_cast<int>(names.size()), texts.data(),
                   names.data()) != 0) {
    fail("NVRTC: no program");
  }
  struct Destroy {
    const Nvrtc& nvrtc;
    Nvrtc::Program& program;
    ~Destroy() { nvrtc.destroy(&program); }
  } const destroy{nvrtc, program};
  for (const std::string& name : request.names) nvrtc.add_name(program, name.c_str());
  const char* const options[] = {request.option.c_str(), "-std=c++20", "-default-device", "-device-int128", "-w"};
  if (nvrtc.compile(program, static_cast<int>(std::size(options)), options) != 0) {
    size_t size = 0;
    nvrtc.log_size(program, &size);
    std::string log(size, '\0');
    nvrtc.log(program, log.data());
    fail("NVRTC refused a function, which is an error of jax_mgpu:\n" + log);
  }
  Image image;
  for (const std::string& name : request.names) {
    const char* lowered = nullptr;
    if (nvrtc.lowered_name(program, name.c_str(), &lowered) != 0) fail("NVRTC: no kernel " + name);
    image.names.emplace_back(lowered);
  }
  const bool is_real = request.option.find("sm_") != std::string::npos;
  size_t size = 0;
  (is_real ? nvrtc.cubin_size : nvrtc.ptx_size)(program, &size);
  image.code.resize(size);
  (is_real ? nvrtc.cubin : nvrtc.ptx)(program, image.code.data());
  return image;
}

Image image_of(const Request& request) {
  const std::string key = request.key();
  if (auto image = compiled::read_image(key, request.names.size())) return *image;
  Image image = compile(request);
  compiled::keep_image(key, image);
  return image;
}

// A separate thread compiles each image but the first.
std::vector<Image> images_of(const std::vector<Request>& requests) {
  std::vector<std::future<Image>> others;
  for (size_t i = 1; i < requests.size(); ++i) {
    others.push_back(std::async(std::launch::async, image_of, std::cref(requests[i])));
  }
  std::vector<Image> images{image_of(requests.front())};
  for (std::future<Image>& other : others) images.push_back(other.get());
  return images;
}

std::vector<Kernel> load(const std::vector<Request>& requests) {
  std::vector<Kernel> kernels;
  for (const Image& image : images_of(requests)) {
    CUlibrary library = nullptr;
    driver().check(driver().cuLibraryLoadData(&library, image.code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                   "cuLibraryLoadData");
    for (const std::string& name : image.names) {
      driver().check(driver().cuLibraryGetKernel(&kernels.emplace_back(), library, name.c_str()), "cuLibraryGetKernel");
    }
  }
  return kernels;
}

}  // namespace

void set_compiler_folders(const std::vector<std::string>& list) { folders() = list; }

std::string compiler_problem() {
  try {
    nvrtc();
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

const std::vector<Kernel>& kernels_of(std::string_view source, std::string_view header,
                                      const std::vector<std::string>& names, int device) {
  const int device_architecture = architecture(device);
  std::string key = std::to_string(device_architecture) + " ";
  key.append(header).append(" ").append(names.front()).append(" ").append(source);
  static auto* const registry = new compiled::Registry<std::vector<Kernel>>;
  return registry->get(key, [&] {
    const auto& known = nvrtc().known;
    const bool is_known = std::find(known.begin(), known.end(), device_architecture) != known.end();
    int target = 0;
    for (const int architecture : known) {
      if (architecture <= device_architecture) target = std::max(target, architecture);
    }
    const Request all{compiled::source_file(header, source), names,
                      (is_known ? "-arch=sm_" : "-arch=compute_") + std::to_string(target)};
    if (!nvrtc().compiles_in_threads()) return load({all});
    std::vector<Request> requests;
    for (const std::string& name : names) requests.push_back({all.source, {name}, all.option});
    return load(requests);
  });
}

std::vector<int> distinct_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  cudaGetLastError();
  std::vector<int> devices, architectures;
  for (int device = 0; device < count; ++device) {
    const int own = architecture(device);
    if (std::find(architectures.begin(), architectures.end(), own) != architectures.end()) continue;
    architectures.push_back(own);
    devices.push_back(device);
  }
  return devices;
}

int current_device() {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) fail("CUDA: no current device");
  return device;
}

int64_t shared_limit(int device) { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device); }

namespace {

// Sets the kernel's limit of dynamic shared memory to that of the device, not to the bytes of one launch: another
// thread may be about to launch the same kernel with more.
void allow_shared(Kernel kernel, int device) {
  int fixed = 0;
  driver().check(driver().cuKernelGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, device),
                 "cuKernelGetAttribute");
  driver().check(driver().cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                               static_cast<int>(shared_limit(device)) - fixed, kernel, device),
                 "cuKernelSetAttribute");
}

}  // namespace

void launch_kernel(Kernel kernel, int64_t blocks, int threads, int64_t shared, CUstream_st* stream,
                   const std::vector<void*>& parameters) {
  if (shared > 0) allow_shared(kernel, current_device());
  driver().check(driver().cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), static_cast<unsigned>(blocks), 1, 1,
                                         static_cast<unsigned>(threads), 1, 1, static_cast<unsigned>(shared), stream,
                                         const_cast<void**>(parameters.data()), nullptr),
                 "cuLaunchKernel");
}

int resident_kernel_blocks(Kernel kernel, int threads, int64_t shared, int64_t work) {
  const int device = current_device();
  if (shared > 0) allow_shared(kernel, device);
  int per_processor = 0;
  driver().check(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                     &per_processor, reinterpret_cast<CUfunction>(kernel), threads, static_cast<size_t>(shared)),
                 "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  const int64_t resident =
      int64_t{device_attribute(cudaDevAttrMultiProcessorCount, device)} * std::max(per_processor, 1);
  return static_cast<int>(std::clamp<int64_t>(work, 1, resident));
}

}  // namespace mgpu::cuda
