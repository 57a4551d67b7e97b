# Every header alone in a generated .cpp and, with CUDA, in a generated .cu. (CMake's own
# VERIFY_INTERFACE_HEADER_SETS silently skips CUDA.) Each is included twice: a forgotten
# `#pragma once` is an error as well.
#
# Short, those that nobody includes but Tidepool itself (`engine/`, `detail/`) come together: what they
# forget to include is found at full length.
#
# nvcc takes four times as long as g++ for each, and reads the same C++: short, it is given all of
# them together, and alone those that CUDA's headers are entered by or that say something else to
# nvcc than to g++. What g++ refuses alone, nvcc need not see alone.

file(GLOB_RECURSE host_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
     ${PROJECT_SOURCE_DIR}/include/tidepool/*.hpp)
file(GLOB_RECURSE cuda_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
     ${PROJECT_SOURCE_DIR}/include/tidepool/*.cuh)

# Files of plans are JSON, and the library that reads it is not a core dependency.
find_path(NLOHMANN_JSON_INCLUDE_DIR nlohmann/json.hpp)
mark_as_advanced(NLOHMANN_JSON_INCLUDE_DIR)
if(NOT NLOHMANN_JSON_INCLUDE_DIR)
  list(FILTER host_headers EXCLUDE REGEX "plan/json.hpp|plan/detail/json_")
endif()

# Those over libtorch bring some 100 000 lines each: together, each first and last in turn.
set(torch_headers ${host_headers})
list(FILTER torch_headers INCLUDE REGEX "tidepool/torch(\\.hpp|/)")
list(FILTER host_headers EXCLUDE REGEX "tidepool/torch(\\.hpp|/)")

# header_sources(<extension> <result> <header>...)
function(header_sources extension result)
  set(sources)
  foreach(header IN LISTS ARGN)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.${extension})
    file(CONFIGURE OUTPUT ${source} CONTENT "#include <${header}>\n#include <${header}>\n")
    list(APPEND sources ${source})
  endforeach()
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# Built by the test of the same name, so that one bad header leaves the other tests alone.
function(header_test name)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${ARGN})
  tidepool_own(${name})
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O0;-Werror>"
                                         "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
  # All failing headers are wanted in one run.
  if(CMAKE_GENERATOR MATCHES "Ninja")
    set(go_on -- -k 0)
  elseif(CMAKE_GENERATOR MATCHES "Makefiles")
    set(go_on -- -k)
  endif()
  include(ProcessorCount)
  ProcessorCount(processors)
  add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} --build ${CMAKE_BINARY_DIR} --target ${name}
                                --config $<CONFIG> --parallel ${processors} ${go_on})
  set_tests_properties(
    ${name}
    PROPERTIES LABELS headers
               TIMEOUT 1500
               COST 1000
               PROCESSORS ${processors}
               RESOURCE_LOCK build_tree)
endfunction()

# together_source(<name> <extension> <result> <header>...): all of them in one file, twice
function(together_source name extension result)
  set(text)
  foreach(header IN LISTS ARGN)
    string(APPEND text "#include <${header}>\n")
  endforeach()
  set(source ${CMAKE_CURRENT_BINARY_DIR}/headers/${name}.${extension})
  file(CONFIGURE OUTPUT ${source} CONTENT "${text}${text}")
  set(${result} ${source} PARENT_SCOPE)
endfunction()

set(alone ${host_headers})
set(together)
if(TIDEPOOL_TEST_LENGTH STREQUAL "short")
  list(FILTER alone EXCLUDE REGEX "/(engine|detail)/")
  list(REMOVE_ITEM alone tidepool/src.hpp) # tidepool_compiled is that header alone
  set(inner ${host_headers})
  list(FILTER inner INCLUDE REGEX "/(engine|detail)/")
  # It brings the bodies of its functions, which need the headers of engine/ whole.
  list(PREPEND inner tidepool/engine/engine.hpp)
  together_source(inner cpp together ${inner})
endif()
header_sources(cpp sources ${alone})
header_test(header_cpp ${sources} ${together})
if(TIDEPOOL_WITH_TORCH)
  get_target_property(gpu_torch tidepool_torch INTERFACE_COMPILE_DEFINITIONS)
  if(NOT gpu_torch)
    list(FILTER torch_headers EXCLUDE REGEX "/(cuda|captured_cuda|cuda_captures)\\.hpp$")
  endif()
  set(forwards ${torch_headers})
  set(backwards ${torch_headers})
  list(REVERSE backwards)
  together_source(torch_forwards cpp first ${forwards})
  together_source(torch_backwards cpp second ${backwards})
  header_test(header_torch ${first} ${second})
  target_link_libraries(header_torch PRIVATE tidepool_torch)
endif()
if(TIDEPOOL_WITH_CUDA)
  if(TIDEPOOL_TEST_LENGTH STREQUAL "full")
    set(alone ${host_headers})
    set(together)
  else()
    set(alone)
    foreach(header IN LISTS host_headers)
      file(STRINGS ${PROJECT_SOURCE_DIR}/include/${header} told REGEX
           "__CUDACC__|__NVCC__|__CUDA_ARCH__|__host__|__device__|#include <cuda")
      if(told)
        list(APPEND alone ${header})
      endif()
    endforeach()
    set(all ${host_headers} ${cuda_headers})
    list(REMOVE_ITEM all tidepool/src.hpp) # it comes first, and stands for a program's one file
    together_source(together cu together ${all})
  endif()
  header_sources(cu sources ${alone} ${cuda_headers})
  header_test(header_cu ${sources} ${together})
endif()
