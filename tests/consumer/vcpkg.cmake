# Runs the portfile with vcpkg's functions replaced by what they do to a package of headers, since
# vcpkg itself is no part of Debian. OUT/packages is then what vcpkg would install.
#
#   cmake -DPORT_DIR=… -DOUT=… -DGENERATOR=… -DVERSION=… -P vcpkg.cmake
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${OUT})
set(PORT tidepool)
set(CURRENT_PACKAGES_DIR ${OUT}/packages)

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${OUT}/build -G ${GENERATOR}
            -DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR} ${arg_OPTIONS}
            COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_cmake_install)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${OUT}/build COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Moves the CMake files to share/<port>, one folder up, and has them look for the prefix from there.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH" "")
  file(MAKE_DIRECTORY ${CURRENT_PACKAGES_DIR}/share)
  file(RENAME ${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH} ${CURRENT_PACKAGES_DIR}/share/${PORT})
  file(GLOB files ${CURRENT_PACKAGES_DIR}/share/${PORT}/*.cmake)
  set(up "get_filename_component\\(_IMPORT_PREFIX \"\\\${_IMPORT_PREFIX}\" PATH\\)\n")
  foreach(file IN LISTS files)
    file(READ ${file} text)
    string(REGEX REPLACE "(${up})${up}${up}" "\\1\\1" text "${text}")
    string(REPLACE "\${CMAKE_CURRENT_LIST_DIR}/../../../" "\${CMAKE_CURRENT_LIST_DIR}/../../" text
                   "${text}")
    file(WRITE ${file} "${text}")
  endforeach()
endfunction()

function(vcpkg_fixup_pkgconfig)
  file(STRINGS ${CURRENT_PACKAGES_DIR}/share/pkgconfig/tidepool.pc prefix REGEX "^prefix=")
  if(NOT prefix MATCHES "pcfiledir")
    message(FATAL_ERROR "tidepool.pc cannot be moved: ${prefix}")
  endif()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(INSTALL ${arg_FILE_LIST} DESTINATION ${CURRENT_PACKAGES_DIR}/share/${PORT} RENAME copyright)
endfunction()

include(${PORT_DIR}/portfile.cmake)

# What vcpkg asks of a package when it is made, as far as it concerns this one.
foreach(file include/tidepool/tidepool.hpp share/tidepool/copyright share/tidepool/usage
             share/tidepool/tidepool-config.cmake)
  if(NOT EXISTS ${CURRENT_PACKAGES_DIR}/${file})
    message(FATAL_ERROR "the package has no ${file}")
  endif()
endforeach()
foreach(folder debug lib share/cmake share/doc)
  if(EXISTS ${CURRENT_PACKAGES_DIR}/${folder})
    message(FATAL_ERROR "vcpkg takes no package with ${folder}")
  endif()
endforeach()
file(READ ${PORT_DIR}/vcpkg.json port)
string(JSON version GET "${port}" version)
if(NOT version STREQUAL VERSION)
  message(FATAL_ERROR "vcpkg.json says ${version}, not ${VERSION}")
endif()
