# A program by pkg-config alone: with headers only, and with the one source compiled once.
#
#   cmake -DPREFIX=… -DCXX=… -DPROGRAMS=FOLDER -DOUT=… -DVERSION=… -P pkgconfig.cmake
cmake_minimum_required(VERSION 3.25)
file(MAKE_DIRECTORY ${OUT})

# run(<variable> <command>...): what it prints, without the line's end
function(run variable)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE out OUTPUT_STRIP_TRAILING_WHITESPACE
                          COMMAND_ERROR_IS_FATAL ANY)
  set(${variable} "${out}" PARENT_SCOPE)
endfunction()

set(ENV{PKG_CONFIG_PATH} ${PREFIX}/share/pkgconfig)
run(version ${PKG_CONFIG} --modversion tidepool)
if(NOT version STREQUAL VERSION)
  message(FATAL_ERROR "tidepool.pc says ${version}, not ${VERSION}")
endif()
run(flags ${PKG_CONFIG} --cflags tidepool)
run(source ${PKG_CONFIG} --variable=source tidepool)
separate_arguments(flags UNIX_COMMAND "${flags}")

# The virtual device alone: with CUDA its own flags would have to come along.
set(compile ${CXX} -std=c++20 -O0 -DTIDEPOOL_NO_CUDA ${flags})
run(none ${compile} ${PROGRAMS}/includes.cpp -o ${OUT}/headers)
run(printed ${OUT}/headers)
message("headers only: ${printed}")
run(none ${compile} -DTIDEPOOL_COMPILED ${PROGRAMS}/main.cpp ${source} -o ${OUT}/compiled)
run(printed ${OUT}/compiled)
message("compiled: ${printed}")
