# CUDA for kernels/cuda, device/cuda and hardware/cuda: finds a toolkit, one that a system has or that
# tools/cuda/install.sh has made, and makes CUDA a language of the project. Only its static runtime is linked, which looks
# for the driver at run time.
set(convene_cuda_least 12.5)  # cudaGetDriverEntryPointByVersion

if(CONVENE_SANITIZE)
  message(FATAL_ERROR "CONVENE_CUDA and CONVENE_SANITIZE do not go together: kernels are checked by their emulation "
                      "(kernels_cuda_emulated_test)")
endif()

if(NOT CMAKE_CUDA_COMPILER)
  file(GLOB cuda_wheels ${PROJECT_SOURCE_DIR}/build/cuda-toolkit/lib/python*/site-packages/nvidia/cu[0-9]*)
  find_program(CONVENE_NVCC nvcc
               HINTS ${CUDAToolkit_ROOT} ENV CUDAToolkit_ROOT ENV CUDA_HOME ENV CUDA_PATH ${cuda_wheels}
               PATHS /usr/local/cuda
               PATH_SUFFIXES bin)
  if(NOT CONVENE_NVCC)
    message(FATAL_ERROR "CONVENE_CUDA is on, and there is no nvcc: run tools/cuda/install.sh, name a toolkit with "
                        "-DCUDAToolkit_ROOT=FOLDER or CUDA_HOME, or have nvcc in PATH")
  endif()
  set(CMAKE_CUDA_COMPILER ${CONVENE_NVCC})
endif()

# Before nvcc is tried: wheels have their libraries in lib, where nvcc does not look.
file(REAL_PATH ${CMAKE_CUDA_COMPILER} cuda_root)
cmake_path(GET cuda_root PARENT_PATH cuda_root)
cmake_path(GET cuda_root PARENT_PATH cuda_root)
if(EXISTS ${cuda_root}/lib/libcudart_static.a)
  set(CMAKE_CUDA_FLAGS_INIT "-L${cuda_root}/lib")
endif()
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
# H100 and H200, whose matrix instructions other architectures do not have; hardware/cuda/gpu.cc has the same.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)

if(NOT CMAKE_CUDA_COMPILER_ID STREQUAL "NVIDIA" OR CMAKE_CUDA_COMPILER_VERSION VERSION_LESS convene_cuda_least)
  message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_ID} ${CMAKE_CUDA_COMPILER_VERSION}; "
                      "nvcc ${convene_cuda_least} or newer is needed: tools/cuda/install.sh installs one")
endif()
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}: ${CMAKE_CUDA_COMPILER}")

# Sources of a target that include CUDA's headers and are compiled by the C++ compiler.
function(convene_use_cuda_headers target)
  list(TRANSFORM CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES PREPEND "-isystem" OUTPUT_VARIABLE options)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS "${options}")
endfunction()
