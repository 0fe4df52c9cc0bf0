# find_package(Troupe) gives troupe::core, troupe::messages, troupe::gpu, one target per floor of actors/, and
# troupe::actors for all of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Troupe")
set(parts core messages gpu world roles shell planes session launch simulation)
if(TROUPE_HAS_CUDA)
  list(APPEND parts cuda)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/TroupeCuda.cmake" DESTINATION "${package_dir}" COMPONENT development)
endif()
foreach(part IN LISTS parts)
  set_property(TARGET troupe_${part} PROPERTY EXPORT_NAME ${part})
  install(TARGETS troupe_${part} EXPORT TroupeTargets
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development
          FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/troupe" COMPONENT development)
endforeach()
set_property(TARGET troupe_actors PROPERTY EXPORT_NAME actors)
install(TARGETS troupe_actors EXPORT TroupeTargets COMPONENT development)
install(EXPORT TroupeTargets NAMESPACE troupe:: DESTINATION "${package_dir}" COMPONENT development)

write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/TroupeConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/TroupeConfig.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/TroupeDependencies.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/TroupeConfigVersion.cmake"
        DESTINATION "${package_dir}" COMPONENT development)

foreach(program troupe gpt)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT programs)
  endif()
endforeach()
