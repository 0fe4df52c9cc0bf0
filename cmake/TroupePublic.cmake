# Troupe::core (formats and maths) and Troupe::runtime (everything): what others link and include, the same from an
# installation and by add_subdirectory. Their headers are copies of those in PublicHeaders.cmake, made here, which
# include each other as <troupe/...>. Inside the tree everybody includes by full path from the root.
include(PublicHeaders)

# troupe_write_public_headers(FOLDER): makes the copies below FOLDER/troupe, removes others there and lists them all
# in TROUPE_PUBLIC_FILES.
function(troupe_write_public_headers folder)
  list(LENGTH TROUPE_PUBLIC_HEADERS words)
  math(EXPR count "${words} / 2")
  math(EXPR odd "${words} % 2")
  if(odd OR count GREATER 25)
    message(FATAL_ERROR "PublicHeaders.cmake has ${words} words: at most 25 pairs are expected, each a file of the "
      "tree and its installed name")
  endif()
  math(EXPR last "${words} - 1")
  foreach(index RANGE 0 ${last} 2)
    math(EXPR next "${index} + 1")
    list(GET TROUPE_PUBLIC_HEADERS ${index} source)
    list(GET TROUPE_PUBLIC_HEADERS ${next} installed_${source})
    list(APPEND sources "${source}")
  endforeach()

  set(written "")
  foreach(source IN LISTS sources)
    set(path "${PROJECT_SOURCE_DIR}/${source}")
    set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${path}")
    file(READ "${path}" text)
    string(REGEX MATCHALL "#[ \t]*include[ \t]*\"[^\"\n]+\"" lines "${text}")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE ".*\"(.+)\"" "\\1" included "${line}")
      if(NOT DEFINED installed_${included})
        message(FATAL_ERROR "${source} is a public header and includes \"${included}\", which is not: "
          "add it to cmake/PublicHeaders.cmake or include less")
      endif()
      string(REPLACE "${line}" "#include <troupe/${installed_${included}}>" text "${text}")
    endforeach()
    set(copy "${folder}/troupe/${installed_${source}}")
    set(before "")
    if(EXISTS "${copy}")
      file(READ "${copy}" before)
    endif()
    # A file that did not change keeps its time, so that nobody compiles it again.
    if(NOT before STREQUAL text)
      file(WRITE "${copy}" "${text}")
    endif()
    list(APPEND written "${copy}")
  endforeach()

  file(GLOB_RECURSE stale "${folder}/troupe/*")
  list(REMOVE_ITEM stale ${written})
  if(stale)
    file(REMOVE ${stale})
  endif()
  set(TROUPE_PUBLIC_FILES "${written}" PARENT_SCOPE)
endfunction()

# troupe_public(NAME LINK libs...): Troupe::NAME. The libraries behind it are linked and give nothing else: neither
# our warnings nor the whole tree's headers.
function(troupe_public name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_library(troupe_public_${name} INTERFACE)
  add_library(Troupe::${name} ALIAS troupe_public_${name})
  set_property(TARGET troupe_public_${name} PROPERTY EXPORT_NAME ${name})
  target_compile_features(troupe_public_${name} INTERFACE cxx_std_20)
  target_include_directories(troupe_public_${name} INTERFACE "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>")
  foreach(library IN LISTS ARG_LINK)
    target_link_libraries(troupe_public_${name} INTERFACE $<LINK_ONLY:${library}>)
  endforeach()
endfunction()

troupe_write_public_headers("${PROJECT_BINARY_DIR}/include")
troupe_public(core LINK troupe_core)
troupe_public(runtime LINK troupe_simulation troupe_launch)
