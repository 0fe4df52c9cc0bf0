# find_package(Troupe) gives Troupe::core (formats and maths alone) and Troupe::runtime (everything). The targets
# Troupe::part_NAME behind them are no interface: they change without notice.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(fmt)
find_dependency(spdlog)
include("${CMAKE_CURRENT_LIST_DIR}/TroupeLibraries.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/TroupeCuda.cmake" OPTIONAL RESULT_VARIABLE with_cuda)
if(with_cuda AND NOT TARGET troupe_cudart)
  list(APPEND TROUPE_MISSING_LIBRARIES cudart_static)
endif()
if(TROUPE_MISSING_LIBRARIES)
  list(JOIN TROUPE_MISSING_LIBRARIES ", " missing)
  set(Troupe_FOUND FALSE)
  set(Troupe_NOT_FOUND_MESSAGE "Troupe links libraries that are not here: ${missing}. Install them, or name the "
    "folder they are in by CMAKE_PREFIX_PATH")
  return()
endif()
include("${CMAKE_CURRENT_LIST_DIR}/TroupeTargets.cmake")
