# Looks whether sources are refused, with the right words, and their control versions are not.
#   cmake "-DCOMPILERS=g++;clang++" -DINCLUDE=… -DFOLDER=… -DCONTROLS=a.cpp;b.cpp -P check.cmake
#   cmake "-DCOMPILERS=g++;clang++" -DINCLUDE=… -DFOLDER=… -DSOURCE=a.cpp -P check.cmake
# The first compiles the prelude into FOLDER, which the second then finds there, and all control
# versions in one source.

cmake_minimum_required(VERSION 3.25)

# The words are those of the C locale, and nothing breaks their lines.
set(ENV{LC_ALL} C)
set(flags -std=c++20 -fdiagnostics-color=never -DTIDEPOOL_NO_CUDA=1 -I${INCLUDE})
set(prelude ${FOLDER}/prelude.hpp)

# run(<argument of the compiler>...): leaves `result` and `output`
macro(run)
  execute_process(
    COMMAND ${compiler} ${flags} ${ARGN}
    RESULT_VARIABLE result
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
endmacro()

macro(must_compile what)
  if(NOT result EQUAL 0)
    message("${output}")
    message(FATAL_ERROR "${compiler}: ${what} does not compile")
  endif()
endmacro()

# The controls stand in one source, each in a namespace of its own.
if(CONTROLS)
  file(COPY ${CMAKE_CURRENT_LIST_DIR}/prelude.hpp DESTINATION ${FOLDER})
  set(text)
  foreach(control IN LISTS CONTROLS)
    get_filename_component(name ${control} NAME_WE)
    string(APPEND text "namespace control_${name} {\n#include \"${control}\"\n}\n")
  endforeach()
  file(WRITE ${FOLDER}/controls.cpp "${text}")
elseif(NOT SOURCE)
  message(FATAL_ERROR "neither CONTROLS nor SOURCE")
else()
  file(STRINGS ${SOURCE} expectations REGEX "^// expect: ")
  if(NOT expectations)
    message(FATAL_ERROR "${SOURCE} expects nothing")
  endif()
endif()

set(seen)
set(number 0)
foreach(compiler IN LISTS COMPILERS)
  # c++, g++ and /usr/bin/g++ are often one and the same. The text holds semicolons, which would
  # make several items of it.
  execute_process(COMMAND ${compiler} --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "^[^\n ]+" "" anonymous "${version}")
  string(MD5 anonymous "${anonymous}")
  if(anonymous IN_LIST seen)
    continue()
  endif()
  list(APPEND seen ${anonymous})
  math(EXPR number "${number} + 1")
  if(version MATCHES "clang")
    set(ahead ${FOLDER}/prelude.${number}.pch)
    set(make_ahead -fpch-instantiate-templates)
    set(use_ahead -include-pch ${ahead})
  else()
    # g++ looks for it beside the header that it stands for.
    set(ahead ${FOLDER}/${number}/prelude.hpp.gch)
    set(make_ahead)
    set(use_ahead -Winvalid-pch -include ${FOLDER}/${number}/prelude.hpp)
    file(MAKE_DIRECTORY ${FOLDER}/${number})
  endif()

  if(CONTROLS)
    run(${make_ahead} -x c++-header ${prelude} -o ${ahead})
    must_compile("the prelude")
    run(${use_ahead} -fsyntax-only -DTIDEPOOL_TEST_CONTROL ${FOLDER}/controls.cpp)
    must_compile("a control version")
    continue()
  endif()

  run(${use_ahead} -fsyntax-only ${SOURCE})
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
