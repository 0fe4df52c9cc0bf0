include(GoogleTest)
include(TroupeJoin)

# What every target of ours is compiled with. Projects that use Troupe compile as they like.
add_library(troupe_flags INTERFACE)
target_include_directories(troupe_flags INTERFACE "${PROJECT_SOURCE_DIR}")
set(flags
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  # A contraction the compiler chooses would make results depend on how a loop was vectorised.
  -ffp-contract=off
  -Wno-missing-field-initializers
  # GCC 12 takes the inactive members of moved variants for uninitialised reads.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
# Kernels give the bits of the host, so nothing is contracted there either. A launch through a stub of nvcc's
# makes warnings of GCC which are not ours, so only some are asked for.
set(cuda_flags -fmad=false -Xcompiler=-Wall,-Wextra,-ffp-contract=off)
if(TROUPE_WERROR)
  list(APPEND flags -Werror)
  list(APPEND cuda_flags -Werror=all-warnings -Xcompiler=-Werror)
endif()
target_compile_options(troupe_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${flags}>" "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")
if(TROUPE_SANITIZE)
  # CAF's packaged headers dereference null in a way that only UBSan's null check minds.
  set(sanitize "-fsanitize=${TROUPE_SANITIZE}" -fno-omit-frame-pointer -fno-sanitize=null -fno-sanitize-recover=undefined)
  target_compile_options(troupe_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${sanitize}>")
  target_link_options(troupe_flags INTERFACE "-fsanitize=${TROUPE_SANITIZE}")
  if(TROUPE_SANITIZE MATCHES "thread")
    # ThreadSanitizer, and so GCC, refuses fences; Asio's locks order the same.
    target_compile_definitions(troupe_asio INTERFACE ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()
if(TROUPE_FUZZ)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -fsanitize=fuzzer)
  check_cxx_source_compiles("#include <cstddef>
    extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return 0; }" TROUPE_HAS_LIBFUZZER)
  unset(CMAKE_REQUIRED_FLAGS)
  if(NOT TROUPE_HAS_LIBFUZZER)
    message(FATAL_ERROR "TROUPE_FUZZ needs clang with libFuzzer: install clang-14, use the preset 'fuzz'")
  endif()
  target_compile_options(troupe_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# troupe_position_independent(NAME): what is linked into bindings to other languages, which are shared objects. That
# a function of ours is replaced by another object of the process is no wish of ours, and GCC would inline less for it.
function(troupe_position_independent name)
  set_property(TARGET ${name} PROPERTY POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fno-semantic-interposition>")
endfunction()

# troupe_decides(TARGET [BULK regex]): what decides, plans or tells, and so spends its time in other libraries or waits,
# is compiled with -O1 in a release: a quarter less to compile (docs/longer-benchmarks.md says what it costs). Those
# that BULK matches go over every byte or element of something large. Comes before troupe_join.
function(troupe_decides target)
  cmake_parse_arguments(ARG "" "BULK" "" ${ARGN})
  get_property(sources TARGET ${target} PROPERTY SOURCES)
  foreach(source IN LISTS sources)
    if(NOT ARG_BULK OR NOT source MATCHES "${ARG_BULK}")
      set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS "$<$<CONFIG:Release>:-O1>")
    endif()
  endforeach()
endfunction()

# troupe_library(NAME [LINK libs...] [HEADERS libs...] [EXCLUDE regex] [ALONE regex] [DECIDES] [BULK regex]): every
# .cpp below the current folder makes one static library. HEADERS are libraries that are headers alone: an installed
# archive needs them no more. ALONE is troupe_join's, DECIDES and BULK are troupe_decides's.
function(troupe_library name)
  cmake_parse_arguments(ARG "DECIDES" "EXCLUDE;ALONE;BULK" "LINK;HEADERS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "*.cpp")
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS "*.hpp")
  list(FILTER sources EXCLUDE REGEX "_bench\\.cpp$")
  if(ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${ARG_EXCLUDE}")
    list(FILTER headers EXCLUDE REGEX "${ARG_EXCLUDE}")
  endif()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:troupe_flags> ${ARG_LINK})
  troupe_position_independent(${name})
  if(ARG_DECIDES)
    troupe_decides(${name} BULK "${ARG_BULK}")
  endif()
  troupe_join(${name} ALONE "${ARG_ALONE}")
  foreach(library IN LISTS ARG_HEADERS)
    target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:${library}>)
  endforeach()
  set_property(TARGET ${name} PROPERTY TROUPE_HEADERS "${headers}")
endfunction()

# troupe_tests(FOLDER [APART regex] LINK libs...): tests/FOLDER/**/*_test.cpp make one binary, labelled by its folder.
function(troupe_tests folder)
  cmake_parse_arguments(ARG "SERIAL" "TIMEOUT;APART" "LINK" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp")
  if(NOT TROUPE_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "/cuda/")
  endif()
  if(NOT sources)
    return()
  endif()
  add_executable(${folder}_tests ${sources})
  troupe_join(${folder}_tests APART "${ARG_APART}")
  target_link_libraries(${folder}_tests PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest_main rapidcheck rapidcheck_gtest)
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${TROUPE_TEST_PATIENCE}")
  set(properties LABELS ${folder} TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT TROUPE_TEST_PATIENCE=${TROUPE_TEST_PATIENCE})
  if(ARG_SERIAL)
    list(APPEND properties RUN_SERIAL TRUE)
  endif()
  gtest_discover_tests(${folder}_tests DISCOVERY_TIMEOUT 60 DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES PROPERTIES ${properties})
endfunction()
