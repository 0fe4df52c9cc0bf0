# Four components: `library`, libtroupe.so; `programs`; `development`: the public headers, the archives,
# find_package(Troupe) and pkg-config's files; and `documents`, with the examples.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Troupe")
# In the order that linkers want: callers stand before what they call.
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
# A file of its own: a project in C finds it without the libraries that the archives need.
install(TARGETS troupe_shared EXPORT TroupeSharedTargets
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT development
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT TroupeSharedTargets NAMESPACE Troupe:: DESTINATION "${package_dir}" COMPONENT development)
install(DIRECTORY "${PROJECT_BINARY_DIR}/include/troupe" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        COMPONENT development)

write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/TroupeConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/TroupeConfig.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/TroupeLibraries.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/TroupeConfigVersion.cmake"
        DESTINATION "${package_dir}" COMPONENT development)

# troupe_pkg_config(FILE NAME DESCRIPTION libraries...): FILE.pc, which finds the rest from where it lies itself. Names
# no folder of the machine that builds; `pc_variables` are its lines of the form NAME=VALUE.
set(pc_variables "")
set(of_archives "The libraries are archives, so their own libraries stand in Libs: with and without --static it links.")
function(troupe_pkg_config file pc_name pc_description pc_comment)
  list(JOIN ARGN " " pc_libraries)
  file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" up "${up}")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/troupe.pc.in" "${PROJECT_BINARY_DIR}/${file}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${file}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig"
          COMPONENT development)
endfunction()

troupe_pkg_config(troupe-c "Troupe (C)" "What troupe.h declares, in libtroupe.so"
  "The library brings what it needs itself." -ltroupe)
set(of_core -lfmt -lxxhash -lstdc++ -lm)
troupe_pkg_config(troupe-core "Troupe (core)" "Formats and maths of distributed training" "${of_archives}"
  -ltroupe_core ${of_core})
set(archives ${parts})
list(TRANSFORM archives PREPEND -ltroupe_)
if(TROUPE_HAS_CUDA)
  # The GPU's archives call each other. One word, because pkg-config leaves out a library that comes again.
  list(REMOVE_ITEM archives -ltroupe_gpu -ltroupe_cuda -ltroupe_posix -ltroupe_core)
  set(pc_variables "# Where the CUDA toolkit is: pkg-config --define-variable=cuda=FOLDER says otherwise.
cuda=/usr/local/cuda
")
  list(APPEND archives "-Wl,--start-group,-ltroupe_gpu,-ltroupe_cuda,--end-group" -ltroupe_posix -ltroupe_core
       "-L\${cuda}/lib64" -lcudart_static -lrt)
endif()
troupe_pkg_config(troupe "Troupe" "${PROJECT_DESCRIPTION}" "${of_archives}"
  ${archives} -lcaf_core -lsodium -lspdlog ${of_core} -ldl -pthread)

foreach(program troupe gpt)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT programs)
  endif()
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/README.md" DESTINATION share/doc/troupe-doc COMPONENT documents)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" DESTINATION share/doc/troupe-doc COMPONENT documents)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/apps/examples" DESTINATION share/doc/troupe-doc COMPONENT documents
        PATTERN CMakeLists.txt EXCLUDE PATTERN libtorch.cpp EXCLUDE)
install(FILES "${PROJECT_SOURCE_DIR}/cmake/examples.cmake" DESTINATION share/doc/troupe-doc/examples
        RENAME CMakeLists.txt COMPONENT documents)
# Each component is a Debian package, and each package says under which licence it is.
foreach(component IN ITEMS library:libtroupe0 programs:troupe development:libtroupe-dev documents:troupe-doc)
  string(REPLACE ":" ";" component "${component}")
  list(GET component 0 name)
  list(GET component 1 package)
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION share/doc/${package} RENAME copyright COMPONENT ${name})
endforeach()
