# libtroupe.so: the functions of troupe.h and nothing else, for programs in C and for languages that load a library while
# they run. The version script hides all other names, so the same process may hold other builds of what Troupe is made of.
# The files of the C interface are compiled into it rather than taken out of the archive, from which a linker takes only
# what somebody calls.
file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/actors/session/c/*.cpp")
set(version_script "${PROJECT_SOURCE_DIR}/cmake/libtroupe.map")
add_library(troupe_shared SHARED ${sources})
target_link_libraries(troupe_shared PRIVATE troupe_flags troupe_simulation troupe_launch)
troupe_position_independent(troupe_shared)
# Its threads outlive a dlclose(), so it stays where it is.
target_link_options(troupe_shared PRIVATE
  "-Wl,--version-script=${version_script}" -Wl,-z,defs -Wl,-z,nodelete)
set_target_properties(troupe_shared PROPERTIES
  OUTPUT_NAME troupe
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS "${version_script}"
  LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib"
  EXPORT_NAME c)
add_library(Troupe::c ALIAS troupe_shared)
target_include_directories(troupe_shared INTERFACE "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>")
