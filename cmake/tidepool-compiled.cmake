# tidepool::compiled: what depends on no module list, compiled once, for programs of many files.
#
# It is built with the flags of the project that links it, in its own build tree: an installed
# package holds its one source, and no binary.

add_library(tidepool_compiled STATIC EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/tidepool.cpp")
add_library(tidepool::compiled ALIAS tidepool_compiled)
target_link_libraries(tidepool_compiled PUBLIC tidepool::tidepool)
target_compile_definitions(tidepool_compiled PUBLIC TIDEPOOL_COMPILED)
set_target_properties(tidepool_compiled PROPERTIES POSITION_INDEPENDENT_CODE ON)

# tidepool_compile_pack(): where the project has enabled the CUDA language, the library has the
# kernels that pack (tidepool/pack.hpp). To be called again if the language is enabled later.
set(TIDEPOOL_PACK_SOURCE "${CMAKE_CURRENT_LIST_DIR}/pack.cu")
function(tidepool_compile_pack)
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  get_target_property(sources tidepool_compiled SOURCES)
  if("CUDA" IN_LIST languages AND TARGET CUDA::cudart AND NOT TIDEPOOL_PACK_SOURCE IN_LIST sources)
    target_sources(tidepool_compiled PRIVATE "${TIDEPOOL_PACK_SOURCE}")
    target_compile_definitions(tidepool_compiled PUBLIC TIDEPOOL_COMPILED_PACK)
    # The target is older than the language.
    foreach(property CUDA_ARCHITECTURES CUDA_RUNTIME_LIBRARY)
      if(DEFINED CMAKE_${property})
        set_target_properties(tidepool_compiled PROPERTIES ${property} "${CMAKE_${property}}")
      endif()
    endforeach()
  endif()
endfunction()
tidepool_compile_pack()
