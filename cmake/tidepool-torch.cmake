# tidepool::torch: the library and libtorch, for trainers that include tidepool/torch.hpp.
#
# Included at file scope. Sets tidepool_torch_FOUND. A project that has found Torch already (targets
# of TorchConfig.cmake) has it taken as it is. Otherwise libtorch is looked for by its files, since
# TorchConfig.cmake would enable CUDA's language in projects that have none of it:
#
#   TIDEPOOL_TORCH_ROOT   its folder; for PyTorch: dirname of python3 -c "import torch; print(torch.__file__)"
#   Torch_DIR, CMAKE_PREFIX_PATH   as TorchConfig.cmake wants them (torch.utils.cmake_prefix_path)
#
# Installed packages remember nothing of it.

if(NOT TARGET tidepool_torch)
  set(TIDEPOOL_TORCH_ROOT "" CACHE PATH "Folder of libtorch, or of Python's package torch")
  mark_as_advanced(TIDEPOOL_TORCH_ROOT)
  set(_tidepool_roots ${TIDEPOOL_TORCH_ROOT})
  if(Torch_DIR)
    list(APPEND _tidepool_roots ${Torch_DIR}/../../..)
  endif()
  foreach(_tidepool_prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND _tidepool_roots ${_tidepool_prefix} ${_tidepool_prefix}/../..)
  endforeach()

  find_path(
    TIDEPOOL_TORCH_INCLUDE_DIR torch/csrc/autograd/saved_variable_hooks.h
    HINTS ${_tidepool_roots}
    PATH_SUFFIXES include)
  mark_as_advanced(TIDEPOOL_TORCH_INCLUDE_DIR)
  set(_tidepool_libraries)
  set(_tidepool_whole TRUE)
  foreach(_tidepool_library c10 torch_cpu torch)
    find_library(TIDEPOOL_${_tidepool_library}_LIBRARY ${_tidepool_library} HINTS ${_tidepool_roots}
                 PATH_SUFFIXES lib)
    mark_as_advanced(TIDEPOOL_${_tidepool_library}_LIBRARY)
    list(PREPEND _tidepool_libraries ${TIDEPOOL_${_tidepool_library}_LIBRARY})
    if(NOT TIDEPOOL_${_tidepool_library}_LIBRARY)
      set(_tidepool_whole FALSE)
    endif()
  endforeach()
  foreach(_tidepool_library torch_cuda c10_cuda)
    find_library(TIDEPOOL_${_tidepool_library}_LIBRARY ${_tidepool_library} HINTS ${_tidepool_roots}
                 PATH_SUFFIXES lib)
    mark_as_advanced(TIDEPOOL_${_tidepool_library}_LIBRARY)
  endforeach()

  set(tidepool_torch_FOUND FALSE)
  if(TARGET torch OR (TIDEPOOL_TORCH_INCLUDE_DIR AND _tidepool_whole))
    set(tidepool_torch_FOUND TRUE)
    add_library(tidepool_torch INTERFACE)
    add_library(tidepool::torch ALIAS tidepool_torch)
    target_link_libraries(tidepool_torch INTERFACE tidepool::tidepool)
    if(TARGET torch)
      target_link_libraries(tidepool_torch INTERFACE ${TORCH_LIBRARIES})
    else()
      target_include_directories(
        tidepool_torch SYSTEM INTERFACE ${TIDEPOOL_TORCH_INCLUDE_DIR}/torch/csrc/api/include
                                        ${TIDEPOOL_TORCH_INCLUDE_DIR})
      target_link_libraries(tidepool_torch INTERFACE ${_tidepool_libraries})
    endif()
    # Of torch's libraries for GPUs a program calls nothing by name: they register themselves.
    get_target_property(_tidepool_cuda tidepool::tidepool TIDEPOOL_CUDA_DECIDED)
    if(TIDEPOOL_torch_cuda_LIBRARY AND TIDEPOOL_c10_cuda_LIBRARY AND _tidepool_cuda)
      target_compile_definitions(tidepool_torch INTERFACE TIDEPOOL_TORCH_CUDA=1)
      target_link_libraries(
        tidepool_torch
        INTERFACE
          "-Wl,--no-as-needed,${TIDEPOOL_torch_cuda_LIBRARY},${TIDEPOOL_c10_cuda_LIBRARY},--as-needed")
    endif()
    unset(_tidepool_cuda)
  endif()
  unset(_tidepool_roots)
  unset(_tidepool_prefix)
  unset(_tidepool_libraries)
  unset(_tidepool_library)
  unset(_tidepool_whole)
else()
  set(tidepool_torch_FOUND TRUE)
endif()
