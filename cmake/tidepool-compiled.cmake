# tidepool::compiled: what depends on no module list, compiled once, for programs of many files.
#
# It is built with the flags of the project that links it, in its own build tree: an installed
# package holds its one source, and no binary.

add_library(tidepool_compiled STATIC EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/tidepool.cpp")
add_library(tidepool::compiled ALIAS tidepool_compiled)
target_link_libraries(tidepool_compiled PUBLIC tidepool::tidepool)
target_compile_definitions(tidepool_compiled PUBLIC TIDEPOOL_COMPILED)
set_target_properties(tidepool_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
