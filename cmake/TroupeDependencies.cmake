# Everything here comes from Debian's packages; packages.txt lists them. The installed package reads this file
# too, so all targets are imported ones.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)

# troupe_find_library(NAME HEADER [LIBRARY]): a library without a CMake package becomes the target troupe_NAME.
function(troupe_find_library name header)
  string(TOUPPER ${name} upper)
  # Debian has OpenBLAS in folders of their own, one for each way to run threads.
  find_path(TROUPE_${upper}_INCLUDE ${header} PATH_SUFFIXES openblas-pthread REQUIRED)
  add_library(troupe_${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(troupe_${name} SYSTEM INTERFACE "${TROUPE_${upper}_INCLUDE}")
  target_link_libraries(troupe_${name} INTERFACE Threads::Threads)
  if(ARGC GREATER 2)
    find_library(TROUPE_${upper}_LIBRARY ${ARGV2} PATH_SUFFIXES openblas-pthread REQUIRED)
    target_link_libraries(troupe_${name} INTERFACE "${TROUPE_${upper}_LIBRARY}")
  endif()
endfunction()

troupe_find_library(xxhash xxhash.h xxhash)
troupe_find_library(sodium sodium.h sodium)
troupe_find_library(caf caf/actor_system.hpp caf_core)
troupe_find_library(gloo gloo/context.h gloo)
troupe_find_library(asio asio.hpp)
target_compile_definitions(troupe_asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED)
troupe_find_library(msgpack msgpack.hpp)
target_compile_definitions(troupe_msgpack INTERFACE MSGPACK_NO_BOOST)
