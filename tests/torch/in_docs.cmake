# cmake -DDOCS=<page> -DPROGRAM=<file> -P in_docs.cmake: the page shows the program, word for word.
file(READ ${DOCS} page)
file(READ ${PROGRAM} program)
string(FIND "${page}" "```cpp\n${program}```" found)
if(found EQUAL -1)
  message(FATAL_ERROR "${DOCS} does not show ${PROGRAM} as it is")
endif()
