# The runtime for other architectures, where Debian's cross compilers are: tests move programs between them.
# lib/portable/TARGET/libshadowib-portable.so, which shadowib-cc --target=TARGET links.
function(shadowib_cross_runtime target)
  find_program(SHADOWIB_CXX_${target} ${target}-g++)
  if(NOT SHADOWIB_CXX_${target})
    return()
  endif()
  set(directory "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/portable/${target}")
  set(options -std=gnu++20 -O1 -fPIC -fvisibility=hidden -D_GNU_SOURCE "-DSHADOWIB_VERSION=\"${PROJECT_VERSION}\"" -I "${PROJECT_SOURCE_DIR}")
  if(target MATCHES "^i686")
    list(APPEND options -msse2 -mfpmath=sse)
  endif()
  set(objects "")
  foreach(source ${ARGN})
    string(REPLACE "/" "_" name "${source}")
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${target}/${name}.o")
    add_custom_command(OUTPUT "${object}" DEPFILE "${object}.d" DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
      # xxhash.h is a header alone, and the same for all.
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} "${SHADOWIB_CXX_${target}}" ${options} -idirafter /usr/include -MD -MF "${object}.d" -c -o "${object}"
        "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
      COMMENT "Building ${source} for ${target}" VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  file(MAKE_DIRECTORY "${directory}" "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  set(library "${directory}/libshadowib-portable.so")
  add_custom_command(OUTPUT "${library}" DEPENDS ${objects} "${CMAKE_CURRENT_SOURCE_DIR}/exports.map"
    COMMAND "${SHADOWIB_CXX_${target}}" -shared -o "${library}" ${objects} -Wl,-soname,libshadowib-portable.so -static-libstdc++ -static-libgcc
      "-Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/exports.map"
    COMMENT "Linking libshadowib-portable.so for ${target}" VERBATIM)
  add_custom_target(portable_${target} ALL DEPENDS "${library}")
  set_property(GLOBAL APPEND PROPERTY shadowib_portable_targets portable_${target})
endfunction()
