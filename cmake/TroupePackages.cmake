# Debian packages, made by cpack -G DEB: `troupe`, the programs; `libtroupe0`, the library for C and for languages that
# load it; `libtroupe-dev`, what others build with; and `troupe-doc`, documents and examples. The workflow preset
# "package" does all of it.
set(CPACK_PACKAGE_NAME troupe)
set(CPACK_PACKAGE_VENDOR Troupe)
# A mail address that is nobody's (RFC 2606); whoever hands packages on gives their own.
set(TROUPE_PACKAGE_CONTACT "Troupe maintainers <maintainers@troupe.invalid>" CACHE STRING
    "Name and mail address of whoever answers for the packages")
set(CPACK_PACKAGE_CONTACT "${TROUPE_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_COMPONENTS_ALL library programs development documents)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)

set(CPACK_DEBIAN_PROGRAMS_PACKAGE_NAME troupe)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAMS_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_PROGRAMS_DESCRIPTION
  "The command troupe (launcher, checkpoints, conversion, simulation) and the trainer troupe-gpt.")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libtroupe${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION
  "The shared library libtroupe.so.${PROJECT_VERSION_MAJOR}: sessions for trainers in C and other languages.")

set(CPACK_DEBIAN_DOCUMENTS_PACKAGE_NAME troupe-doc)
set(CPACK_DEBIAN_DOCUMENTS_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_DOCUMENTS_PACKAGE_ARCHITECTURE all)
set(CPACK_COMPONENT_DOCUMENTS_DESCRIPTION "Documents of Troupe, and examples in C++, C and Python.")

# What a link with the archives, and a compilation with the public headers, asks for.
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtroupe-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "libtroupe${PROJECT_VERSION_MAJOR} (= ${PROJECT_VERSION}), libcaf-dev, libexpected-dev, libfmt-dev, libsodium-dev, libspdlog-dev, libxxhash-dev")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
  "Headers, static libraries, and files for CMake (find_package) and pkg-config, to embed Troupe in a trainer.")
include(CPack)
