# tidepool_test_batches(<out> <files in a batch> <test file>...): sources that hold several tests each.
#
# Most of a test's compile time is the headers and the engine's templates, the same in every test:
# eight tests in one source are built five times as fast as alone, and support/engines.hpp leaves
# them the engines that are compiled already. Each keeps a namespace of its own, so that their
# names do not meet; what they include therefore comes first, outside of it. A test that opens
# another namespace than its unnamed one, specialises a template or includes a source stays alone.
function(tidepool_test_batches out size)
  set(sources)
  set(files)
  foreach(file IN LISTS ARGN)
    file(STRINGS ${file} bound REGEX "^(namespace [a-z_:0-9]+ {|template <>|#include .*[.]cpp\")")
    if(bound OR size LESS 2)
      list(APPEND sources ${file})
    else()
      list(APPEND files ${file})
    endif()
  endforeach()
  # The includes are read from them here.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})

  set(number 0)
  while(files)
    math(EXPR number "${number} + 1")
    set(includes)
    set(tests)
    foreach(_ RANGE 1 ${size})
      list(POP_FRONT files file)
      if(file)
        file(STRINGS ${file} included REGEX "^#include ")
        list(APPEND includes ${included})
        file(RELATIVE_PATH name ${CMAKE_CURRENT_SOURCE_DIR} ${file})
        string(MAKE_C_IDENTIFIER ${name} name)
        get_filename_component(path ${file} ABSOLUTE)
        string(APPEND tests "\nnamespace ${name} {\n#include \"${path}\"\n}")
      endif()
    endforeach()
    list(REMOVE_DUPLICATES includes)
    list(JOIN includes "\n" includes)
    set(batch ${CMAKE_CURRENT_BINARY_DIR}/batch_${number}.cpp)
    file(CONFIGURE OUTPUT ${batch} CONTENT "#include \"engines.hpp\"\n${includes}\n${tests}\n" @ONLY)
    list(APPEND sources ${batch})
  endwhile()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()
