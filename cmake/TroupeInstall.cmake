# Two components: `programs`, and `development`: the public headers, the archives, find_package(Troupe) and
# pkg-config's files.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Troupe")
# As a linker wants them: whoever calls stands before what is called.
set(parts simulation launch session planes shell roles world messages gpu posix core)
if(TROUPE_HAS_CUDA)
  list(APPEND parts cuda)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/TroupeCuda.cmake" DESTINATION "${package_dir}" COMPONENT development)
endif()
foreach(part IN LISTS parts)
  set_property(TARGET troupe_${part} PROPERTY EXPORT_NAME part_${part})
  install(TARGETS troupe_${part} EXPORT TroupeTargets
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
endforeach()
install(TARGETS troupe_public_core troupe_public_runtime EXPORT TroupeTargets
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT TroupeTargets NAMESPACE Troupe:: DESTINATION "${package_dir}" COMPONENT development)
install(DIRECTORY "${PROJECT_BINARY_DIR}/include/troupe" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        COMPONENT development)

write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/TroupeConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/TroupeConfig.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/TroupeLibraries.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/TroupeConfigVersion.cmake"
        DESTINATION "${package_dir}" COMPONENT development)

# troupe_pkg_config(FILE NAME DESCRIPTION libraries...): FILE.pc, which finds the rest from where it lies itself.
function(troupe_pkg_config file pc_name pc_description)
  list(JOIN ARGN " " pc_libraries)
  file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/troupe.pc.in" "${PROJECT_BINARY_DIR}/${file}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${file}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
          COMPONENT development)
endfunction()

set(of_core -lfmt -lxxhash -lstdc++ -lm)
set(archives ${parts})
list(TRANSFORM archives PREPEND -ltroupe_)
if(TROUPE_HAS_CUDA)
  # The GPU's archives call each other. One word, because pkg-config leaves out a library that comes again.
  list(REMOVE_ITEM archives -ltroupe_gpu -ltroupe_cuda -ltroupe_posix -ltroupe_core)
  list(APPEND archives "-Wl,--start-group,-ltroupe_gpu,-ltroupe_cuda,--end-group" -ltroupe_posix -ltroupe_core
       "${TROUPE_CUDART_LIBRARY}" -lrt)
endif()
troupe_pkg_config(troupe-core "Troupe (core)" "Formats and maths of distributed training" -ltroupe_core ${of_core})
troupe_pkg_config(troupe "Troupe" "${PROJECT_DESCRIPTION}"
  ${archives} -lcaf_core -lgloo -lsodium -lspdlog ${of_core} -ldl -pthread)

foreach(program troupe gpt)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT programs)
  endif()
endforeach()
# Among all programs of a machine "gpt" is too general a name.
if(TARGET gpt)
  install(CODE "
    set(folder_of_programs \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
    file(RENAME \"\${folder_of_programs}/gpt\" \"\${folder_of_programs}/troupe-gpt\")" COMPONENT programs)
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION share/doc/troupe RENAME copyright COMPONENT programs)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION share/doc/libtroupe-dev RENAME copyright
        COMPONENT development)
