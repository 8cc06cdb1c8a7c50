// A test is a function that the program runs; a failed CHECK prints its location and ends the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace mgpu::testing {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Registration {
  Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

inline void check(bool holds, const char* condition, const char* file, int line) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
  std::exit(1);
}

}  // namespace mgpu::testing

#define CHECK(...) ::mgpu::testing::check(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)

#define TEST(name)                                                                     \
  static void test_##name();                                                           \
  static const ::mgpu::testing::Registration registration_##name(#name, &test_##name); \
  static void test_##name()
