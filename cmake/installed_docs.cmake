# The installed documents have no source tree beside them, and man pages elsewhere: links that lead there become their
# words. Run at installation, with -DDIRECTORY=.
file(GLOB_RECURSE pages "${DIRECTORY}/*.md")
foreach(page IN LISTS pages)
  file(RELATIVE_PATH name "${DIRECTORY}" "${page}")
  string(REGEX MATCHALL "/" folders "${name}")
  list(LENGTH folders depth)
  string(REPEAT "\\.\\./" ${depth} to_top)
  file(READ "${page}" text)
  string(REGEX REPLACE "\\[([^]\n]*)\\]\\(${to_top}(\\.\\./|man/)[^)\n]*\\)" "\\1" text "${text}")
  file(WRITE "${page}" "${text}")
endforeach()
