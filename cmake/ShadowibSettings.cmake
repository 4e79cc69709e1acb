# Settings every target shares: language level, warnings, sanitizers, where outputs go.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS ON)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib/static")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# -g1: functions and lines, for backtraces. Types and local variables (preset `debug`) cost a third of the compile time.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

add_compile_options(-Wall -Wextra -Werror -Wno-missing-field-initializers -fno-omit-frame-pointer)
add_compile_definitions(_GNU_SOURCE SHADOWIB_VERSION="${PROJECT_VERSION}")
include_directories("${PROJECT_SOURCE_DIR}")

# Loops must not become calls of memcpy where there is none, or in memcpy itself.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(SHADOWIB_NO_LOOP_CALLS -fno-tree-loop-distribute-patterns)
else()
  set(SHADOWIB_NO_LOOP_CALLS -fno-builtin)
endif()

option(SHADOWIB_THREAD_SAFETY "Check locks by shadowib/base/thread_annotations.h (clang)" OFF)
if(SHADOWIB_THREAD_SAFETY)
  # clang finds two harmless things that gcc does not: formats passed on by templates, rdma-core's two enums of access flags.
  add_compile_options(-Wthread-safety -Wno-format-security -Wno-deprecated-enum-enum-conversion)
endif()

set(SHADOWIB_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")
if(SHADOWIB_SANITIZE)
  add_compile_options(-fsanitize=${SHADOWIB_SANITIZE} -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${SHADOWIB_SANITIZE})
  # gcc says so by itself: what a sanitizer takes the place of, as malloc, is not tested there.
  if(SHADOWIB_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    add_compile_definitions(__SANITIZE_ADDRESS__)
  endif()
  # A report names functions and lines; types and variables cost a part of the compile time.
  set(CMAKE_CXX_FLAGS_DEBUG "-g1")
  set(CMAKE_C_FLAGS_DEBUG "-g1")
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG")  # of fuzz targets
  set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG")
endif()

# shadowib_optimise(targets...): these are optimised in sanitizer builds, too. Hashing every byte of images that are some
# ten times larger there takes minutes otherwise.
function(shadowib_optimise)
  if(SHADOWIB_SANITIZE)
    foreach(target IN LISTS ARGN)
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O2>)
    endforeach()
  endif()
endfunction()

# shadowib_unoptimised(sources...): tests and options, of whose compile time optimising is half and more. Line numbers stay.
function(shadowib_unoptimised)
  if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "-O0;-g1")
  endif()
endfunction()

# shadowib_cold(targets...): no time of a program or a checkpoint is spent in these. -Og compiles in half the time of -O2, and
# a backtrace has its functions without -g1, which costs a sixth of what is left. Beside fuzz targets -O0 takes half the time of -O1.
function(shadowib_cold)
  if(NOT CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    return()
  endif()
  set(options "-Og;-g0")
  if(SHADOWIB_SANITIZE)
    set(options "-O0")
  endif()
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${options}>")
  endforeach()
endfunction()

# shadowib_hot(sources...): these of a cold target are optimised as others are. They are apart in every preset, so that the
# same files are united in all: a name that two of them have is found by each.
function(shadowib_hot)
  shadowib_apart(${ARGN})
  if(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo" AND NOT SHADOWIB_SANITIZE)
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "-O2;-g1")
  elseif(CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo")
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "-O1")
  endif()
endfunction()

# shadowib_unite(targets...): their sources are compiled some at a time, since the headers are most of the time it takes. Names
# in anonymous namespaces must differ between them then.
function(shadowib_unite)
  set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
endfunction()

# shadowib_apart(sources...): these are compiled by themselves in a target that is united.
function(shadowib_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# shadowib_test(NAME name LABELS l... [SIDE_BY_SIDE n] SOURCES s... LIBS l...): one GoogleTest program; its tests at once, in n
# processes, where they mostly wait. TIMEOUT ends what hangs and judges no speed: some five times what a loaded machine takes.
# Every test carries one of the labels unit, conformance, client, chaos, bench.
function(shadowib_test)
  cmake_parse_arguments(T "" "NAME;TIMEOUT;SIDE_BY_SIDE" "LABELS;SOURCES;LIBS" ${ARGN})
  if(NOT BUILD_TESTING)
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(${T_NAME} ${T_SOURCES})
  set(own ${T_SOURCES})  # the others are the product's, and compiled as there
  list(FILTER own INCLUDE REGEX "_test[.]cc$|^conformance/|^tests/|^test_")
  shadowib_unoptimised(${own})
  target_link_libraries(${T_NAME} PRIVATE ${T_LIBS} GTest::gtest GTest::gtest_main)
  if(T_SIDE_BY_SIDE)
    add_test(NAME ${T_NAME} COMMAND "${PROJECT_SOURCE_DIR}/ci/side_by_side" ${T_SIDE_BY_SIDE} $<TARGET_FILE:${T_NAME}>)
  else()
    add_test(NAME ${T_NAME} COMMAND ${T_NAME})
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  if(SHADOWIB_SANITIZE)  # everything is some five times slower there
    math(EXPR T_TIMEOUT "${T_TIMEOUT} * 5")
  endif()
  set_tests_properties(${T_NAME} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT})
  if(SHADOWIB_SANITIZE AND "ib2tcp_testing" IN_LIST T_LIBS)
    # No copy of the backend is unloaded there (testing/process.cc). glibc has room for some 70 copies' thread-local data.
    set_tests_properties(${T_NAME} PROPERTIES ENVIRONMENT "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=65536")
  endif()
endfunction()

# shadowib_fuzz(NAME name SOURCES s... LIBS l...): a libFuzzer target bin/fuzz_<name>, in the preset fuzz only. Its seeds are
# ci/fuzz/seeds/<name>/*.hex; ci/fuzz/run runs it.
set(SHADOWIB_FUZZ OFF CACHE BOOL "Build fuzz targets (clang)")
if(SHADOWIB_FUZZ)
  add_custom_target(fuzzers)
endif()
function(shadowib_fuzz)
  cmake_parse_arguments(F "" "NAME" "SOURCES;LIBS" ${ARGN})
  if(NOT SHADOWIB_FUZZ)
    return()
  endif()
  add_executable(fuzz_${F_NAME} EXCLUDE_FROM_ALL ${F_SOURCES})
  target_link_libraries(fuzz_${F_NAME} PRIVATE ${F_LIBS})
  target_link_options(fuzz_${F_NAME} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers fuzz_${F_NAME})
endfunction()
