# The one rule by which Tidepool takes CUDA or leaves it, for the source tree and for an installed
# package alike: an installation remembers nothing of the machine that it was made on.
#
#   tidepool_use_cuda(<target> <AUTO|ON|OFF> <result>)
#
# AUTO takes the toolkit where one of version 12 or later is found, ON insists, OFF leaves it alone
# even where its headers lie in the compiler's own path. <result> becomes TRUE, FALSE, or, under ON
# without a toolkit, NOTFOUND. The CUDA *language* is not needed: a C++ compiler alone will do.

function(tidepool_use_cuda target mode result)
  get_target_property(decided ${target} TIDEPOOL_CUDA_DECIDED)
  if(NOT decided STREQUAL "decided-NOTFOUND")
    set(${result} ${decided} PARENT_SCOPE)
    return()
  endif()

  string(TOUPPER "${mode}" mode)
  if(NOT mode MATCHES "^(AUTO|ON|OFF|TRUE|FALSE|YES|NO|1|0)$")
    message(FATAL_ERROR "tidepool: TIDEPOOL_CUDA is \"${mode}\"; it must be AUTO, ON or OFF")
  endif()

  set(found FALSE)
  if(mode STREQUAL "AUTO" OR mode)
    # CMake 3.25, which Debian 12 has, stumbles over toolkits from 13 on, which have no nvToolsExt:
    # it marks the missing target as outdated in projects that ask for 3.25 or later.
    if(CMAKE_VERSION VERSION_LESS 3.26)
      set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
    endif()
    # GLOBAL, so that a project that adds Tidepool as a subdirectory can link to it.
    find_package(CUDAToolkit 12.0 QUIET GLOBAL)
    if(CUDAToolkit_FOUND AND TARGET CUDA::cudart)
      set(found TRUE)
    endif()
  endif()

  if(found)
    # BUILD_INTERFACE keeps all of this out of an installed package; see above.
    target_compile_definitions(${target} INTERFACE $<BUILD_INTERFACE:TIDEPOOL_HAS_CUDA=1>)
    target_link_libraries(${target} INTERFACE $<BUILD_INTERFACE:CUDA::cudart>)
    if(TARGET CUDA::nvtx3)
      target_link_libraries(${target} INTERFACE $<BUILD_INTERFACE:CUDA::nvtx3>)
    endif()
    # nvcc finds the toolkit's CCCL (<cuda/stream_ref>) by itself, a C++ compiler does not. A system
    # directory goes behind a CCCL that the project brings along.
    find_path(
      TIDEPOOL_CCCL_INCLUDE_DIR cuda/stream_ref
      HINTS ${CUDAToolkit_INCLUDE_DIRS}
      PATH_SUFFIXES cccl
      NO_DEFAULT_PATH)
    mark_as_advanced(TIDEPOOL_CCCL_INCLUDE_DIR)
    if(TIDEPOOL_CCCL_INCLUDE_DIR)
      target_include_directories(
        ${target} SYSTEM
        INTERFACE $<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:${TIDEPOOL_CCCL_INCLUDE_DIR}>>)
    endif()
  elseif(NOT mode STREQUAL "AUTO" AND mode)
    set(found NOTFOUND)
  else()
    target_compile_definitions(${target} INTERFACE $<BUILD_INTERFACE:TIDEPOOL_NO_CUDA=1>)
  endif()

  if(found AND NOT tidepool_FIND_QUIETLY)
    message(STATUS "tidepool: CUDA toolkit ${CUDAToolkit_VERSION} (TIDEPOOL_CUDA=${mode})")
  elseif(NOT tidepool_FIND_QUIETLY)
    message(STATUS "tidepool: without CUDA (TIDEPOOL_CUDA=${mode})")
  endif()
  set_target_properties(${target} PROPERTIES TIDEPOOL_CUDA_DECIDED ${found})
  set(${result} ${found} PARENT_SCOPE)
endfunction()
