#include "check.h"

int main() {
  for (const auto& test : mgpu::testing::tests()) {
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
  }
  std::printf("%zu tests passed\n", mgpu::testing::tests().size());
  return mgpu::testing::tests().empty();
}
