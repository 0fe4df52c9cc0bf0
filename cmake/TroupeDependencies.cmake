# Everything here comes from Debian's packages; packages.txt lists them. Programs of another project that has Troupe
# in a subfolder link these libraries too, so their targets are seen everywhere.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
include(TroupeLibraries)

# troupe_find_header(NAME HEADER): where the headers of troupe_NAME are; makes the target when it has no more than
# them.
function(troupe_find_header name header)
  string(TOUPPER "TROUPE_${name}_INCLUDE" variable)
  find_path(${variable} ${header} PATH_SUFFIXES openblas-pthread REQUIRED)
  mark_as_advanced(${variable})
  if(NOT TARGET troupe_${name})
    add_library(troupe_${name} INTERFACE IMPORTED GLOBAL)
    target_link_libraries(troupe_${name} INTERFACE Threads::Threads)
  endif()
  target_include_directories(troupe_${name} SYSTEM INTERFACE "${${variable}}")
endfunction()

troupe_find_header(xxhash xxhash.h)
troupe_find_header(sodium sodium.h)
troupe_find_header(caf caf/actor_system.hpp)
troupe_find_header(asio asio.hpp)
target_compile_definitions(troupe_asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED)
troupe_find_header(msgpack msgpack.hpp)
target_compile_definitions(troupe_msgpack INTERFACE MSGPACK_NO_BOOST)

# What only the programs, the tests and the benchmarks need.
if(TROUPE_BUILD_APPS)
  find_package(CLI11 REQUIRED)
  troupe_find_library(openblas openblas)
  troupe_find_header(openblas cblas.h)
  troupe_find_library(onig onig)
  troupe_find_header(onig oniguruma.h)
  find_package(ICU REQUIRED COMPONENTS uc)
endif()
if(TROUPE_BUILD_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
  troupe_find_library(boost_context boost_context)
  troupe_find_header(boost_context boost/context/fiber.hpp)
endif()
if(TROUPE_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()

if(TROUPE_MISSING_LIBRARIES)
  list(JOIN TROUPE_MISSING_LIBRARIES ", " missing)
  message(FATAL_ERROR "Troupe needs libraries that are not here: ${missing}. Run scripts/setup, or name the folder "
    "they are in: -DCMAKE_PREFIX_PATH=FOLDER")
endif()
