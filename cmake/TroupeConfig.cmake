include("${CMAKE_CURRENT_LIST_DIR}/TroupeDependencies.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/TroupeCuda.cmake" OPTIONAL)
include("${CMAKE_CURRENT_LIST_DIR}/TroupeTargets.cmake")
