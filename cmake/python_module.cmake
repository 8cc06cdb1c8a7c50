# Builds the module that opens the libraries of kernels for Python, with nanobind. It uses Python's stable ABI from 3.12
# on. It is not kept between builds, because each Python has its own.

if(MGPU_KERNEL_PACKAGE)
  return()
endif()

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter OPTIONAL_COMPONENTS Development.Module Development.SABIModule)
if(NOT Python_Development.Module_FOUND)
  message(FATAL_ERROR "jax_mgpu: Python's headers are missing: install them (python3-dev on Debian), or a wheel of jax_mgpu, \
or run `MGPU_KERNELS=OFF pip install .`, which installs the plain-JAX form of everything.")
endif()
ask_python(nanobind_ROOT "import nanobind; print(nanobind.cmake_dir())")
find_package(nanobind CONFIG REQUIRED)

nanobind_add_module(_kernels STABLE_ABI FREE_THREADED NB_STATIC NOMINSIZE NB_DOMAIN jax_mgpu ffi/python/module.cc)
# nanobind's sources have the same headers, so they compile faster as one file.
get_target_property(libraries _kernels LINK_LIBRARIES)
list(FILTER libraries INCLUDE REGEX "^nanobind")
set_target_properties(${libraries} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
target_include_directories(_kernels PRIVATE ffi)
target_link_libraries(_kernels PRIVATE ${CMAKE_DL_LIBS})
# The module exports nothing of the libraries that are linked into it, so the linker leaves out unused parts.
target_link_options(_kernels PRIVATE ${MGPU_LINK_OPTIONS} -Wl,--exclude-libs,ALL)
if(SKBUILD)
  install(TARGETS _kernels LIBRARY DESTINATION jax_mgpu)
else()
  set_target_properties(_kernels PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_SOURCE_DIR}/jax_mgpu)
endif()
