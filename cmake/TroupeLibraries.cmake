# The libraries that whoever links Troupe links too, as targets. The installed package reads this file as well.
# A library without a CMake package becomes the target troupe_NAME.
set(TROUPE_MISSING_LIBRARIES "")
macro(troupe_find_library name library)
  if(NOT TARGET troupe_${name})
    string(TOUPPER "TROUPE_${name}_LIBRARY" variable)
    # Debian has OpenBLAS in folders of their own, one for each way to run threads, and a link to the one that was
    # chosen. What links that needs no RUNPATH, which the loader would try first for every library.
    find_library(${variable} ${library})
    find_library(${variable} ${library} PATH_SUFFIXES openblas-pthread)
    mark_as_advanced(${variable})
    if(NOT ${variable})
      list(APPEND TROUPE_MISSING_LIBRARIES ${library})
    endif()
    add_library(troupe_${name} INTERFACE IMPORTED GLOBAL)
    target_link_libraries(troupe_${name} INTERFACE "${${variable}}" Threads::Threads)
  endif()
endmacro()

troupe_find_library(xxhash xxhash)
troupe_find_library(sodium sodium)
troupe_find_library(caf caf_core)
