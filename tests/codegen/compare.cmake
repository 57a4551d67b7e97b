# Compares the instructions of `forward` and `backward` in two object files, relocations included.
#   cmake -DOBJDUMP=… -DPLAIN=a.o -DOTHER=b.o -DEXPECT=equal|different -P compare.cmake

# instructions(<object> <function> <result>)
function(instructions object function result)
  execute_process(
    COMMAND ${OBJDUMP} --disassemble --reloc --no-show-raw-insn --section=.text.${function} ${object}
    OUTPUT_VARIABLE text
    COMMAND_ERROR_IS_FATAL ANY)
  if(NOT text MATCHES "<${function}>:\n(.*)")
    message(FATAL_ERROR "${object} has no function ${function}")
  endif()
  # `call 15 <forward+0x15>`: objdump guesses at names; the addresses and the relocations know.
  string(REGEX REPLACE " <[^>\n]*>" "" text "${CMAKE_MATCH_1}")
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

foreach(function forward backward)
  instructions(${PLAIN} ${function} plain)
  instructions(${OTHER} ${function} other)
  if(plain STREQUAL other)
    set(found equal)
  else()
    set(found different)
  endif()
  message("--- ${function}, without Tidepool:\n${plain}\n--- ${function}, with it:\n${other}\n")
  if(NOT found STREQUAL EXPECT)
    message(FATAL_ERROR "${function}: the instructions are ${found}, expected was ${EXPECT}")
  endif()
endforeach()
