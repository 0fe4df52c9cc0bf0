# Everything here comes from Debian's packages; packages.txt lists them. The installed package reads this file
# too, so all targets are imported ones.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED QUIET IMPORTED_TARGET libxxhash)
pkg_check_modules(sodium REQUIRED QUIET IMPORTED_TARGET libsodium)

# troupe_find_library(NAME HEADER [LIBRARY]): a library without a CMake package becomes the target troupe_NAME.
function(troupe_find_library name header)
  string(TOUPPER ${name} upper)
  find_path(TROUPE_${upper}_INCLUDE ${header} REQUIRED)
  add_library(troupe_${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(troupe_${name} SYSTEM INTERFACE "${TROUPE_${upper}_INCLUDE}")
  target_link_libraries(troupe_${name} INTERFACE Threads::Threads)
  if(ARGC GREATER 2)
    find_library(TROUPE_${upper}_LIBRARY ${ARGV2} REQUIRED)
    target_link_libraries(troupe_${name} INTERFACE "${TROUPE_${upper}_LIBRARY}")
  endif()
endfunction()

troupe_find_library(caf caf/actor_system.hpp caf_core)
troupe_find_library(gloo gloo/context.h gloo)
troupe_find_library(asio asio.hpp)
target_compile_definitions(troupe_asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED)
troupe_find_library(msgpack msgpack.hpp)
target_compile_definitions(troupe_msgpack INTERFACE MSGPACK_NO_BOOST)
