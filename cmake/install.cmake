include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Headers only: nothing in the package depends on the architecture.
set(tidepool_package_dir ${CMAKE_INSTALL_DATADIR}/cmake/tidepool)

install(
  DIRECTORY ${PROJECT_SOURCE_DIR}/include/tidepool
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING
  PATTERN "*.hpp"
  PATTERN "*.cuh")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(
  TARGETS tidepool
  EXPORT tidepool-targets
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(
  EXPORT tidepool-targets
  NAMESPACE tidepool::
  DESTINATION ${tidepool_package_dir})

configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/tidepool-config.cmake.in ${PROJECT_BINARY_DIR}/tidepool-config.cmake
  INSTALL_DESTINATION ${tidepool_package_dir})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/tidepool-config-version.cmake
  COMPATIBILITY SameMinorVersion
  ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/tidepool-config.cmake
              ${PROJECT_BINARY_DIR}/tidepool-config-version.cmake
              ${CMAKE_CURRENT_LIST_DIR}/tidepool-cuda.cmake
              ${CMAKE_CURRENT_LIST_DIR}/tidepool-compiled.cmake
              ${CMAKE_CURRENT_LIST_DIR}/tidepool-torch.cmake
              ${CMAKE_CURRENT_LIST_DIR}/pack.cu
              ${CMAKE_CURRENT_LIST_DIR}/tidepool.cpp DESTINATION ${tidepool_package_dir})

# pkg-config, which needs nothing of the architecture either.
set(pkgconfig_dir ${CMAKE_INSTALL_DATADIR}/pkgconfig)
file(RELATIVE_PATH prefix_from_pkgconfig "/prefix/${pkgconfig_dir}" "/prefix")
string(REGEX REPLACE "/$" "" prefix_from_pkgconfig "${prefix_from_pkgconfig}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/tidepool.pc.in ${PROJECT_BINARY_DIR}/tidepool.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tidepool.pc DESTINATION ${pkgconfig_dir})

if(PROJECT_IS_TOP_LEVEL)
  include(${CMAKE_CURRENT_LIST_DIR}/package.cmake)
endif()
