# Looks whether a source is refused, with the right words, and its control version is not.
#   cmake "-DCOMPILERS=g++;clang++" -DSOURCE=… -DINCLUDE=… -P check.cmake

cmake_minimum_required(VERSION 3.25)

# The words are those of the C locale, and nothing breaks their lines.
set(ENV{LC_ALL} C)
set(flags -std=c++20 -fsyntax-only -fdiagnostics-color=never -DTIDEPOOL_NO_CUDA=1 -I${INCLUDE})

file(STRINGS ${SOURCE} expectations REGEX "^// expect: ")
if(NOT expectations)
  message(FATAL_ERROR "${SOURCE} expects nothing")
endif()

set(seen)
foreach(compiler IN LISTS COMPILERS)
  # c++, g++ and /usr/bin/g++ are often one and the same.
  execute_process(COMMAND ${compiler} --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "^[^\n ]+" "" version "${version}")
  if(version IN_LIST seen)
    continue()
  endif()
  list(APPEND seen "${version}")

  execute_process(
    COMMAND ${compiler} ${flags} -DTIDEPOOL_TEST_CONTROL ${SOURCE}
    RESULT_VARIABLE control
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(NOT control EQUAL 0)
    message("${output}")
    message(FATAL_ERROR "${compiler}: the control version does not compile")
  endif()
  execute_process(
    COMMAND ${compiler} ${flags} ${SOURCE}
    RESULT_VARIABLE result
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(result EQUAL 0)
    message(FATAL_ERROR "${compiler}: the mistake compiles")
  endif()
  # The compiler may show a line of the source; its comments must not be what is found.
  string(REGEX REPLACE "[^\n]*// expect: [^\n]*" "" output "${output}")
  foreach(expectation IN LISTS expectations)
    string(REGEX REPLACE "^// expect: " "" expectation "${expectation}")
    if(NOT output MATCHES "${expectation}")
      message("${output}")
      message(FATAL_ERROR "${compiler}: the message lacks \"${expectation}\"")
    endif()
  endforeach()
  message("${compiler}: refused as expected:\n${output}")
endforeach()
