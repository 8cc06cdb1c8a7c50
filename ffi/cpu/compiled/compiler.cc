#include "cpu/compiled/compiler.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <vector>

#include "compiled/embedded_headers.h"
#include "compiled/images.h"
#include "compiled/registry.h"

extern char** environ;

namespace mgpu::cpu {

namespace {

namespace fs = std::filesystem;
using compiled::Image;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

std::string read_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// A folder for a compiler's files, as long as it works.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    std::string path = (fs::temp_directory_path(error) / "jax_mgpu_XXXXXX").string();
    if (error || !mkdtemp(path.data())) fail("no temporary folder can be made in " + path + ": TMPDIR names another");
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  fs::path operator/(std::string_view name) const { return path_ / name; }
  void write(std::string_view name, std::string_view text) const {
    const fs::path path = path_ / name;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    std::ofstream stream(path, std::ios::binary);
    stream << text;
    if (!stream.flush()) fail("cannot write to " + path.string());
  }

 private:
  fs::path path_;
};

// Runs a program, without a shell, its output to a file. Gives whether it ran and succeeded.
bool run_program(const std::vector<std::string>& command, const fs::path& output) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, arguments[0], &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed) return false;
  int status = 0;
  pid_t ended = 0;
  while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  // A process that ignores the ends of its children is not told how this one ended: its output tells.
  if (ended < 0) return errno == ECHILD;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// ---- The compiler: that of the build, or the one that MGPU_CPU_COMPILER names.

struct Compiler {
  std::string path;
  std::string version;  // as it describes itself; empty where there is none

  static Compiler find() {
    const char* const named = std::getenv("MGPU_CPU_COMPILER");
    Compiler compiler{named && *named ? named : MGPU_CXX_COMPILER, {}};
    const TemporaryFolder folder;
    if (run_program({compiler.path, "--version"}, folder / "version")) compiler.version = read_text(folder / "version");
    return compiler;
  }
};

const Compiler& compiler() {
  static const Compiler found = Compiler::find();
  return found;
}

// Contracted multiplications and additions would round in another way than XLA's.
const std::vector<std::string>& options() {
  static const std::vector<std::string> list = {
      "-std=c++20", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-shared", "-fPIC", "-s", "-w"};
  return list;
}

// All that an image depends on. The last is what the compiler makes code for, which its version does not say.
std::string key_of(const std::string& source) {
  utsname machine{};
  uname(&machine);
  std::string key = "C++ by " + compiler().path + ", " + compiler().version + "headers " +
                    compiled::embedded_headers_digest() + ", " + machine.machine;
  for (const std::string& option : options()) key += " " + option;
  return key + "\n" + source;
}

Image compile(const std::string& source) {
  constexpr size_t kMostLog = 4000;
  const TemporaryFolder folder;
  for (const compiled::EmbeddedHeader& header : compiled::embedded_headers()) folder.write(header.name, header.text);
  folder.write("function.cc", source);
  std::vector<std::string> command = {compiler().path};
  command.insert(command.end(), options().begin(), options().end());
  for (const char* word : {"-I", "", "-o", "", ""}) command.emplace_back(word);
  const size_t last = command.size() - 1;
  command[last - 3] = (folder / ".").string();
  command[last - 1] = (folder / "kernel.so").string();
  command[last] = (folder / "function.cc").string();
  Image image;
  if (run_program(command, folder / "log")) image.code = read_text(folder / "kernel.so");
  if (image.code.empty()) {
    fail(compiler().path + " could not compile a function (g++ 11, clang++ 14 or newer is needed):\n" +
         read_text(folder / "log").substr(0, kMostLog));
  }
  return image;
}

// ---- Kernels of this process.

// Null and an error where the image cannot be loaded.
CompiledKernel load(const Image& image, std::string& error) {
  const TemporaryFolder folder;  // a name of its own: the loader knows files by their names
  folder.write("kernel.so", image.code);
  void* const library = dlopen((folder / "kernel.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const kernel = library ? dlsym(library, kCompiledKernelName) : nullptr;
  if (!kernel) {
    const char* const text = dlerror();
    error = text ? text : "unknown error";
  }
  return reinterpret_cast<CompiledKernel>(kernel);
}

CompiledKernel make(const std::string& source) {
  if (std::string problem = compiler_problem(); !problem.empty()) fail(problem);
  const std::string key = key_of(source);
  std::string error;
  if (const auto image = compiled::read_image(key, 0)) {
    if (const CompiledKernel kernel = load(*image, error)) return kernel;
    // Another machine with the same folder may have libraries that this one has not.
  }
  const Image image = compile(source);
  const CompiledKernel kernel = load(image, error);
  if (!kernel) fail("a compiled function cannot be loaded: " + error + ". TMPDIR names another temporary folder");
  compiled::keep_image(key, image);
  return kernel;
}

}  // namespace

std::string compiler_problem() {
  try {
    if (!compiler().version.empty()) return {};
    return "there is no C++ compiler " + compiler().path +
           ": install g++ 11 or newer, or name a compiler by MGPU_CPU_COMPILER";
  } catch (const std::exception& error) {
    return error.what();
  }
}

CompiledKernel kernel_of(std::string_view source, std::string_view header, std::string_view kernel,
                         std::string_view arguments, std::string_view any_arguments) {
  std::string problem("mgpu::cpu::");
  problem.append(kernel).append("<");
  std::string entry = "extern \"C\" __attribute__((visibility(\"default\"))) const char* ";
  entry.append(kCompiledKernelName)
      .append("(const void* problem, const mgpu::cpu::LentThreads* lent) {\n  return mgpu::cpu::run_compiled<")
      .append(problem + std::string(arguments) + ">, " + problem + std::string(any_arguments) +
              ">>(problem, lent);\n}\n");
  static auto* const registry = new compiled::Registry<CompiledKernel>;
  const std::string text = "#include \"cpu/compiled/kernel.h\"\n" + compiled::source_file(header, source) + entry;
  return registry->get(text, [&] { return make(text); });
}

}  // namespace mgpu::cpu
