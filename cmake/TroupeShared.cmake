# libtroupe.so: the functions of troupe.h, those of peers.h for Python, and nothing else, for programs in C and for
# languages that load a library while they run. The version script hides all other names, so the same process may hold other builds of what Troupe is made of.
# A linker takes out of an archive what somebody calls, so each function that the headers declare is asked for.
set(functions "")
foreach(header IN ITEMS troupe.h peers.h)
  set(header "${PROJECT_SOURCE_DIR}/actors/session/c/${header}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
  file(READ "${header}" text)
  string(APPEND functions "${text}")
endforeach()
string(REGEX MATCHALL "troupe_[a-z_0-9]+\\(" functions "${functions}")
list(REMOVE_DUPLICATES functions)
list(TRANSFORM functions REPLACE "(.+)\\(" "-Wl,-u,\\1")
set(version_script "${PROJECT_SOURCE_DIR}/cmake/libtroupe.map")
file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/libtroupe.cpp" CONTENT "")
add_library(troupe_shared SHARED "${PROJECT_BINARY_DIR}/libtroupe.cpp")
target_link_libraries(troupe_shared PRIVATE troupe_simulation troupe_launch)
target_link_options(troupe_shared PRIVATE ${functions})
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
