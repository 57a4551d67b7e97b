# What Tidepool's own tests, examples and benches are compiled with. Nothing here reaches a project
# that uses the library.

option(TIDEPOOL_CCACHE "Compile Tidepool's own programs through ccache where there is one" ON)
find_program(TIDEPOOL_CCACHE_PROGRAM ccache)
mark_as_advanced(TIDEPOOL_CCACHE_PROGRAM)
if(TIDEPOOL_CCACHE AND TIDEPOOL_CCACHE_PROGRAM)
  foreach(language CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${TIDEPOOL_CCACHE_PROGRAM})
    endif()
  endforeach()
endif()

add_library(tidepool_warnings INTERFACE)
# g++ takes a program's own counting `operator new` on top of malloc for a mismatch. clang++ counts
# sign conversions among -Wconversion, g++ does not; only the headers, which others compile, are held
# to it (tests/consumer/added).
set(warnings -Wall -Wextra -Wconversion -Wshadow -Wno-sign-conversion -Wno-mismatched-new-delete)
# g++ 12 takes `"text" + std::string` for an overlapping copy (GCC bug 105651, mended in 13).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND warnings -Wno-restrict)
endif()
# g++ 13 at -O3 takes the first store of a `pool` inside an `offload_place` for one into the small
# buffer of the place's name, which is another member.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  list(APPEND warnings -Wno-stringop-overflow)
endif()
if(TIDEPOOL_WARNINGS_AS_ERRORS)
  list(APPEND warnings -Werror)
endif()
# nvcc's own front end does not know these; it hands them to the host compiler.
list(JOIN warnings "," warnings_for_nvcc)
target_compile_options(
  tidepool_warnings
  INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
            "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=${warnings_for_nvcc}>")
if(TIDEPOOL_WARNINGS_AS_ERRORS)
  target_compile_options(tidepool_warnings
                         INTERFACE "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Werror=all-warnings>")
endif()

add_library(tidepool_sanitize INTERFACE)
if(TIDEPOOL_SANITIZE)
  set(flags -fsanitize=${TIDEPOOL_SANITIZE} -fno-omit-frame-pointer)
  target_compile_options(
    tidepool_sanitize INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${flags};-fno-sanitize-recover=all>"
                                "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-Xcompiler=-fsanitize=${TIDEPOOL_SANITIZE}>")
  target_link_options(tidepool_sanitize INTERFACE -fsanitize=${TIDEPOOL_SANITIZE})
endif()

# tidepool_own(<target>...): the library, our warnings and the sanitizers.
function(tidepool_own)
  foreach(target IN LISTS ARGN)
    target_link_libraries(${target} PRIVATE tidepool::tidepool tidepool_warnings tidepool_sanitize)
    set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  endforeach()
endfunction()
