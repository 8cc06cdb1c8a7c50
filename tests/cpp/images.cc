// Images that were stored come back. Files that are truncated or special, or that other users may have written, do not,
// and reading them does not block.
#include "jit/images.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "check.h"

namespace mgpu::testing {

namespace {

namespace fs = std::filesystem;
using compiled::Image;
using compiled::keep_image;
using compiled::read_image;

std::string read_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_text(const fs::path& path, std::string_view text) {
  std::ofstream stream(path, std::ios::binary);
  stream << text;
}

mode_t mode_of(const fs::path& path) {
  struct stat found;
  CHECK(lstat(path.c_str(), &found) == 0);
  return found.st_mode & 0777;
}

// Each cache has its own folder, which does not exist yet.
class Cache {
 public:
  Cache() {
    std::string path = (fs::temp_directory_path() / "jax_mgpu_test_XXXXXX").string();
    CHECK(mkdtemp(path.data()));
    root_ = path;
    setenv("MGPU_CACHE_DIR", folder().c_str(), 1);
    unsetenv("MGPU_CACHE_BYTES");
  }
  ~Cache() { fs::remove_all(root_); }

  fs::path root() const { return root_; }
  fs::path folder() const { return root_ / "deeper" / "cache"; }

  size_t files() const { return std::distance(fs::directory_iterator(folder()), {}); }
  fs::path entry() const {
    CHECK(files() == 1);
    return fs::directory_iterator(folder())->path();
  }

 private:
  fs::path root_;
};

Image image_of(const std::string& code) { return {{"first", "second"}, code}; }

bool comes_back(const std::string& key, const std::string& code) {
  const auto image = read_image(key, 2);
  return image && image->code == code && image->names == std::vector<std::string>{"first", "second"};
}

template <typename Run>
std::string errors_of(const fs::path& file, Run run) {
  const pid_t child = fork();
  if (child == 0) {
    const int opened = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(opened, 2);
    run();
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  return read_text(file);
}

size_t count_of(const std::string& text, const std::string& word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

}  // namespace

TEST(images_come_back) {
  const Cache cache;
  CHECK(!read_image("key", 2));
  CHECK(!fs::exists(cache.folder()));
  const mode_t before = umask(0);
  keep_image("key", image_of("code"));
  umask(before);
  CHECK(comes_back("key", "code"));
  CHECK(!read_image("another", 2));
  CHECK(mode_of(cache.folder()) == 0700 && mode_of(cache.entry()) == 0600);
  keep_image("key", image_of("other code"));
  CHECK(comes_back("key", "other code") && cache.files() == 1);
}

TEST(images_that_were_cut_or_changed_do_not) {
  const Cache cache;
  const std::string code(5000, 'x');
  keep_image("key", image_of(code));
  const fs::path entry = cache.entry();
  const std::string whole = read_text(entry);
  for (size_t at = 0; at < whole.size(); at += at < 200 ? 1 : 379) {
    write_text(entry, whole.substr(0, at));
    CHECK(!read_image("key", 2));
    std::string changed = whole;
    changed[at] ^= 0x41;
    write_text(entry, changed);
    CHECK(!read_image("key", 2));
  }
  write_text(entry, whole + "x");
  CHECK(!read_image("key", 2));
  keep_image("key", image_of(code));
  CHECK(comes_back("key", code));
}

TEST(images_are_regular_files) {
  const Cache cache;
  keep_image("key", image_of("code"));
  const fs::path entry = cache.entry(), elsewhere = cache.root() / "elsewhere";
  const std::string whole = read_text(entry);
  write_text(elsewhere, whole);
  const auto expect_mended = [&] {
    CHECK(!read_image("key", 2));
    keep_image("key", image_of("code"));
    CHECK(comes_back("key", "code") && fs::is_regular_file(fs::symlink_status(entry)));
    CHECK(read_text(elsewhere) == whole);
    fs::remove(entry);
  };
  fs::remove(entry);
  fs::create_symlink(elsewhere, entry);
  expect_mended();
  CHECK(mkfifo(entry.c_str(), 0600) == 0);
  expect_mended();
  fs::create_symlink("/dev/zero", entry);
  expect_mended();
  fs::create_symlink(entry, entry);
  expect_mended();
  fs::create_directory(entry);
  CHECK(!read_image("key", 2));
  keep_image("key", image_of("code"));
  CHECK(fs::is_directory(entry) && cache.files() == 1 && !read_image("key", 2));
}

TEST(images_of_others_are_left_alone) {
  const Cache cache;
  keep_image("key", image_of("code"));
  const fs::path entry = cache.entry();
  for (const mode_t mode : {0620, 0602, 0666}) {
    CHECK(chmod(entry.c_str(), mode) == 0);
    CHECK(!read_image("key", 2));
  }
  CHECK(chmod(entry.c_str(), 0600) == 0);
  for (const mode_t mode : {0720, 0702, 0777, 01777}) {
    CHECK(chmod(cache.folder().c_str(), mode) == 0);
    const std::string errors = errors_of(cache.root() / "errors", [&] {
      CHECK(!read_image("key", 2));
      keep_image("key", image_of("other code"));
      keep_image("another", image_of("code"));
    });
    CHECK(count_of(errors, "warning") == 1 && count_of(errors, "chmod go-w " + cache.folder().string()) == 1);
    CHECK(cache.files() == 1);
  }
  CHECK(chmod(cache.folder().c_str(), 0755) == 0);
  CHECK(comes_back("key", "code"));
  if (geteuid() != 0) return;  // only root can give files away
  CHECK(chown(entry.c_str(), 12345, -1) == 0);
  CHECK(!read_image("key", 2));
  CHECK(chown(cache.folder().c_str(), 12345, -1) == 0);
  const std::string errors = errors_of(cache.root() / "errors", [&] { keep_image("another", image_of("code")); });
  CHECK(count_of(errors, "another user") == 1 && cache.files() == 1);
}

TEST(images_need_a_folder) {
  const Cache cache;
  fs::create_directories(cache.root() / "deeper");
  write_text(cache.folder(), "a file");
  const std::string errors = errors_of(cache.root() / "errors", [&] {
    CHECK(!read_image("key", 2));
    keep_image("key", image_of("code"));
  });
  CHECK(count_of(errors, "Not a directory") == 1);
  CHECK(read_text(cache.folder()) == "a file");
  setenv("MGPU_CACHE_DIR", "", 1);
  CHECK(errors_of(cache.root() / "errors", [&] {
          keep_image("key", image_of("code"));
          CHECK(!read_image("key", 2));
        }).empty());
}

TEST(images_take_no_more_than_was_allowed) {
  const Cache cache;
  const std::string code(1000, 'x');
  setenv("MGPU_CACHE_BYTES", "4000", 1);
  for (int i = 0; i < 5; ++i) {
    keep_image(std::to_string(i), image_of(code));
    CHECK(comes_back("0", code));  // this counts as a use
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(cache.files() == 3 && !comes_back("1", code) && comes_back("4", code));
  keep_image("large", image_of(std::string(5000, 'x')));
  CHECK(cache.files() == 3 && !read_image("large", 2));
  for (const char* given : {"256MB", "1e9", "abc", "-1", " 1", "1 ", "0x10", "99999999999999999999"}) {
    setenv("MGPU_CACHE_BYTES", given, 1);
    for (const bool reads : {true, false}) {
      std::string error;
      try {
        reads ? void(read_image("0", 2)) : keep_image("0", image_of(code));
      } catch (const std::runtime_error& thrown) {
        error = thrown.what();
      }
      CHECK(count_of(error, "MGPU_CACHE_BYTES: expected a number of bytes") == 1 && count_of(error, given) == 1);
    }
  }
}

TEST(images_that_a_process_left_unfinished_are_dropped) {
  const Cache cache;
  keep_image("key", image_of("code"));
  const fs::path entry = cache.entry();
  const fs::path old = entry.string() + ".4711", fresh = entry.string() + ".4712", foreign = cache.folder() / "notes";
  for (const fs::path& path : {old, fresh, foreign}) write_text(path, "part");
  for (const fs::path& path : {old, foreign}) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  keep_image("key", image_of("code"));
  CHECK(!fs::exists(old) && fs::exists(fresh) && fs::exists(foreign) && comes_back("key", "code"));
}

TEST(images_that_do_not_fit_on_the_disk_leave_nothing) {
  const Cache cache;
  keep_image("small", image_of("code"));
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit few{2000, before.rlim_max};
  CHECK(setrlimit(RLIMIT_FSIZE, &few) == 0);
  keep_image("large", image_of(std::string(5000, 'x')));
  CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
  signal(SIGXFSZ, ignored);
  CHECK(cache.files() == 1 && comes_back("small", "code") && !read_image("large", 2));
}

TEST(images_are_whole_for_threads_and_processes) {
  const Cache cache;
  const auto use = [](int seed) {
    for (int i = 0; i < 50; ++i) {
      const std::string key = std::to_string((i + seed) % 3);
      if (const auto image = read_image(key, 2)) CHECK(image->code == std::string(100000, key[0]));
      keep_image(key, image_of(std::string(100000, key[0])));
    }
  };
  const pid_t child = fork();
  if (child == 0) {
    use(1);
    _exit(0);
  }
  std::thread other(use, 2);
  use(0);
  other.join();
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(cache.files() == 3);
  for (const char* key : {"0", "1", "2"}) CHECK(comes_back(key, std::string(100000, key[0])));
}

}  // namespace mgpu::testing
