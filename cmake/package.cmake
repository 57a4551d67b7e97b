# `cpack -G DEB` in the build folder makes libtidepool-dev, for all architectures.

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libtidepool-dev)
set(CPACK_PACKAGE_CONTACT "The maintainers of Tidepool <maintainers@tidepool.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "Header-only C++20 library for training loops: it offloads the tensors that a module saves after\
 its forward pass, and reloads them before its backward pass.")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++ (>= 4:12), cmake (>= 3.25), pkg-config")
include(CPack)

# For trying Tidepool out, and so not installed: whoever installs has the headers.
add_custom_target(
  single_header
  COMMAND ${PROJECT_SOURCE_DIR}/packaging/single_header.py ${PROJECT_BINARY_DIR}/tidepool_single.hpp
  VERBATIM)
