# Turns on the CUDA language for Tidepool's own .cu files. Users of the library do not come here.

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  # nvcc is often installed without being in the PATH. tidepool-cuda.cmake says why the version.
  set(wanted_cmake ${CMAKE_MINIMUM_REQUIRED_VERSION})
  if(CMAKE_VERSION VERSION_LESS 3.26)
    set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
  endif()
  find_package(CUDAToolkit QUIET)
  set(CMAKE_MINIMUM_REQUIRED_VERSION ${wanted_cmake})
  if(CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER "${CUDAToolkit_NVCC_EXECUTABLE}")
  endif()
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "CUDA architectures of Tidepool's own programs")
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "tidepool: there is a CUDA toolkit, but no CUDA compiler that works. Set "
                      "CUDACXX, or take TIDEPOOL_CUDA=OFF.")
endif()
enable_language(CUDA)
# The library links the shared runtime; a second, static one in the same program would be another.
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
