# One CMake target per folder of src/: convene_folder(text USES base LIBRARIES PkgConfig::oniguruma)
# makes the library convene_text from src/text/**/*.cc and, from its *_test.cc, the test text_test.
# A folder links only what its row of docs/architecture.md allows. WITHOUT comm/mpi leaves a part out. With CUDA, sources
# of NVIDIA's compiler (text/**/*.cu) are the library's, too.

add_library(convene_options INTERFACE)
target_include_directories(convene_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(convene_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion;-Werror=return-type>"
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>  # g++ 12 reports string::insert falsely
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall;-Xcompiler=-Wextra;-lineinfo>")
target_link_libraries(convene_options INTERFACE fmt::fmt Threads::Threads)
if(CONVENE_SANITIZE)
  target_compile_options(convene_options INTERFACE -fsanitize=${CONVENE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if(CONVENE_SANITIZE MATCHES "undefined")
    # Null pointers and places outside of objects are found by the address sanitizer too; misaligned addresses
    # and objects of a wrong type are given up for a third of the build's time.
    target_compile_options(convene_options INTERFACE -fno-sanitize=null,alignment,object-size,vptr)
  endif()
  target_link_options(convene_options INTERFACE -fsanitize=${CONVENE_SANITIZE})
endif()

# Reading headers is more than half of what sources take to compile. So those of a folder are compiled eight at a time, and its tests, as
# one source ("unity builds"): names in their anonymous namespaces are unique within the folder. clang-tidy looks at them
# one by one, and finds a source that forgets one of its includes.
option(CONVENE_UNITY "Compile the sources of a folder eight at a time" ON)

# With sanitizers these headers are read once for all of them.
set(convene_precompiled)
if(CONVENE_SANITIZE)
  set(convene_precompiled <algorithm> <array> <atomic> <chrono> <filesystem> <fstream> <functional> <map> <memory> <mutex>
    <optional> <random> <span> <string> <string_view> <thread> <unordered_map> <variant> <vector>
    <fmt/format.h> <nlohmann/json.hpp>)
endif()

# Precompiled headers (HEADER...) of the targets of one `kind`, which are compiled alike.
function(convene_precompile target kind)
  get_property(first GLOBAL PROPERTY convene_first_${kind})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  elseif(ARGN)
    set_property(GLOBAL PROPERTY convene_first_${kind} ${target})
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()

function(convene_folder name)
  cmake_parse_arguments(ARG "" "" "USES;LIBRARIES;WITHOUT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc)
  if(CONVENE_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cu)
    list(APPEND sources ${cuda_sources})
  endif()
  list(FILTER sources EXCLUDE REGEX "/main/main\\.cc$")  # an executable of its own
  foreach(part ${ARG_WITHOUT})
    list(FILTER sources EXCLUDE REGEX "/src/${part}(/|$)")
  endforeach()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(TRANSFORM ARG_USES PREPEND convene_)
  if(NOT sources)
    add_library(convene_${name} INTERFACE)
    target_link_libraries(convene_${name} INTERFACE convene_options ${ARG_USES} ${ARG_LIBRARIES})
  else()
    add_library(convene_${name} STATIC ${sources})
    target_link_libraries(convene_${name} PUBLIC convene_options ${ARG_USES} ${ARG_LIBRARIES})
    set_target_properties(convene_${name} PROPERTIES UNITY_BUILD ${CONVENE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
    set_source_files_properties(${cuda_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    convene_precompile(convene_${name} library ${convene_precompiled})
    if(CONVENE_CUDA)
      list(FILTER sources INCLUDE REGEX "/src/${name}/cuda/.*\\.cc$")
      convene_use_cuda_headers(convene_${name} ${sources})
    endif()
  endif()
  if(CONVENE_TESTS AND tests)
    convene_test(${name}_test SOURCES ${tests} USES ${name})
  endif()
endfunction()

# A GoogleTest executable, whose name is the label of its tests; tests find the repository through CONVENE_SOURCE_DIR.
function(convene_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  list(TRANSFORM ARG_USES PREPEND convene_)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_USES} GTest::gtest_main GTest::gmock)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ${CONVENE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  target_compile_definitions(${name} PRIVATE CONVENE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(CONVENE_SANITIZE)
    target_compile_definitions(${name} PRIVATE CONVENE_SANITIZED)
  endif()
  # What tests take to compile is mostly GoogleTest: it is read once, and their own code not optimised much.
  target_compile_options(${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-maybe-uninitialized>")  # false in g++ 12 at -O1
  convene_precompile(${name} test <gtest/gtest.h> <gmock/gmock.h> ${convene_precompiled})
  # Bus errors of mapped files are the program's own matter.
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 300 LABELS ${name} ENVIRONMENT ASAN_OPTIONS=handle_sigbus=0)
endfunction()
