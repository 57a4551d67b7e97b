# Figures of docs/caps.md are what `caps` prints on the virtual device and of the recorded step, and its
# picture is what `caps` draws. Both depend on the engine alone, so that they are the same on every machine.
#
#   cmake -DCAPS=... -DSOURCE=... -DOUT=... -P page.cmake
cmake_minimum_required(VERSION 3.25)
file(READ ${SOURCE}/docs/caps.md page)
file(MAKE_DIRECTORY ${OUT})

# shown(<folder> <argument>...): the page has what this prints, from its first line to its last
function(shown folder)
  execute_process(COMMAND ${CAPS} ${ARGN} WORKING_DIRECTORY ${folder} OUTPUT_VARIABLE printed
                          COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "\nwrote [^\n]*\n$" "\n" printed "${printed}")
  string(FIND "${page}" "```text\n${printed}```\n" at)
  if(at EQUAL -1)
    list(JOIN ARGN " " arguments)
    message(SEND_ERROR "docs/caps.md has other figures than `caps ${arguments}`:\n${printed}")
  endif()
endfunction()

shown(${OUT} --device virtual --picture ${OUT}/caps.svg)
shown(${SOURCE}/tests/profiles --profile dense_24.profile.json)
file(READ ${OUT}/caps.svg drawn)
file(READ ${SOURCE}/docs/images/caps-virtual.svg committed)
if(NOT drawn STREQUAL committed)
  message(SEND_ERROR "docs/images/caps-virtual.svg is not what caps draws now: ${OUT}/caps.svg is")
endif()
