# An overlay port: it takes the source tree in which it is kept.
#
#   vcpkg install tidepool --overlay-ports=packaging/vcpkg
set(VCPKG_BUILD_TYPE release) # headers only

get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DTIDEPOOL_BUILD_TESTS=OFF -DTIDEPOOL_BUILD_EXAMPLES=OFF -DTIDEPOOL_BUILD_BENCH=OFF
          -DTIDEPOOL_CUDA=OFF # what uses the package chooses for itself
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/tidepool)
vcpkg_fixup_pkgconfig()

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/share/cmake" "${CURRENT_PACKAGES_DIR}/share/doc")
file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
