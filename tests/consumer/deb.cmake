# Makes libtidepool-dev as docs/installing.md says, and unpacks it into OUT/root.
#
#   cmake -DSOURCE=… -DOUT=… -DGENERATOR=… -DCPACK=… -DDPKG_DEB=… -DVERSION=… -P deb.cmake
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${OUT})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${OUT}/build -G ${GENERATOR} -DTIDEPOOL_BUILD_TESTS=OFF
          -DTIDEPOOL_BUILD_EXAMPLES=OFF -DTIDEPOOL_BUILD_BENCH=OFF COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CPACK} -G DEB WORKING_DIRECTORY ${OUT}/build COMMAND_ERROR_IS_FATAL ANY)

set(package ${OUT}/build/libtidepool-dev_${VERSION}_all.deb)
execute_process(COMMAND ${DPKG_DEB} -f ${package} OUTPUT_VARIABLE control COMMAND_ERROR_IS_FATAL ANY)
foreach(line "Package: libtidepool-dev" "Version: ${VERSION}" "Architecture: all")
  if(NOT "\n${control}" MATCHES "\n${line}\n")
    message(FATAL_ERROR "the package does not say \"${line}\":\n${control}")
  endif()
endforeach()
execute_process(COMMAND ${DPKG_DEB} -x ${package} ${OUT}/root COMMAND_ERROR_IS_FATAL ANY)
