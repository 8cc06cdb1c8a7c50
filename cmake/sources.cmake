# The sources of the CPU library: the project and tests/cpp both build it from them.
set(ffi ${CMAKE_CURRENT_LIST_DIR}/../ffi)
file(GLOB operands_sources CONFIGURE_DEPENDS ${ffi}/ops/*/signature.cc ${ffi}/ops/common/*.cc ${ffi}/ops/*/plan.cc
     ${ffi}/ops/*/read_*.cc ${ffi}/runtime/signature.cc ${ffi}/jit/function_data.cc)
file(GLOB cpu_sources CONFIGURE_DEPENDS ${ffi}/ops/*/cpu.cc ${ffi}/runtime/executor.cc)
