# A project that has Troupe in a subfolder wants the libraries, and its own settings left as they are.
option(TROUPE_BUILD_APPS "Build the programs" ${PROJECT_IS_TOP_LEVEL})
option(TROUPE_BUILD_TESTS "Build the tests (with the programs)" ${PROJECT_IS_TOP_LEVEL})
option(TROUPE_BUILD_BENCHMARKS "Build the benchmarks (with the programs)" ${PROJECT_IS_TOP_LEVEL})
option(TROUPE_INSTALL "Make the rules of an installation" ${PROJECT_IS_TOP_LEVEL})
if((TROUPE_BUILD_TESTS OR TROUPE_BUILD_BENCHMARKS) AND NOT TROUPE_BUILD_APPS)
  message(FATAL_ERROR "TROUPE_BUILD_APPS is OFF, and the tests and benchmarks need the programs: set it ON, or "
    "TROUPE_BUILD_TESTS and TROUPE_BUILD_BENCHMARKS OFF")
endif()
# AUTO is right for CI too: wherever there is nvcc the data plane is compiled and linked, and a program with it runs
# where there is no GPU and no driver.
set(TROUPE_CUDA AUTO CACHE STRING "Build the GPU data plane (CUDA, NCCL): AUTO where its tools are, ON, OFF")
set_property(CACHE TROUPE_CUDA PROPERTY STRINGS AUTO ON OFF)
option(TROUPE_WERROR "Treat warnings as errors" ${PROJECT_IS_TOP_LEVEL})
set(TROUPE_SANITIZE "" CACHE STRING "Sanitizers to build with, comma separated (address, undefined, thread)")
if(TROUPE_SANITIZE MATCHES "thread" AND NOT EXISTS "${TROUPE_CAF_LIBRARY}")
  message(FATAL_ERROR "ThreadSanitizer needs a CAF that was compiled for it, or reports races that do not exist, and "
    "TROUPE_CAF_LIBRARY is \"${TROUPE_CAF_LIBRARY}\": run scripts/build_tsan_caf, then use the preset \"tsan\"")
endif()
set(TROUPE_TEST_PATIENCE 1 CACHE STRING "How many times as long tests may take, for builds that are slow by intention")
option(TROUPE_JOIN_SOURCES "Compile the sources of a folder together: quick from nothing, slower after a change" OFF)
set(TROUPE_JOINED_FOLDER "${PROJECT_BINARY_DIR}/joined" CACHE PATH "Where TROUPE_JOIN_SOURCES writes what it compiles")
option(TROUPE_FUZZ "Build the fuzzers of tests/fuzz as programs of libFuzzer (clang and its runtime)" OFF)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE)
  # One copy of the tree serves the next, wherever that stands.
  set(TROUPE_CACHED_COMPILER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
      "${TROUPE_CCACHE}")
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${TROUPE_CACHED_COMPILER}")
  endif()
endif()
