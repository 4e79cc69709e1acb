# The runtime for other architectures, where Debian's cross compilers are.
# lib/shadowib/portable/TARGET/libshadowib-portable.so, which shadowib-cc --target=TARGET links.
function(shadowib_cross_runtime target)
  find_program(SHADOWIB_CXX_${target} ${target}-g++)
  if(NOT SHADOWIB_CXX_${target})
    return()
  endif()
  set(directory "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/shadowib/portable/${target}")
  set(options -std=gnu++20 -O1 -fPIC -D_GNU_SOURCE "-DSHADOWIB_VERSION=\"${PROJECT_VERSION}\"" -I "${PROJECT_SOURCE_DIR}")
  if(target MATCHES "^i686")
    list(APPEND options -msse2 -mfpmath=sse)
  endif()
  # All sources as one: other processors' libraries should not double the time of a build.
  set(directory_here "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  set(all "")
  foreach(source ${ARGN})
    string(APPEND all "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT "${directory_here}/all.cc" CONTENT "${all}" @ONLY)
  file(MAKE_DIRECTORY "${directory}")
  set(object "${directory_here}/all.o")
  set(library "${directory}/libshadowib-portable.so")
  add_custom_command(OUTPUT "${object}" DEPFILE "${object}.d" DEPENDS "${directory_here}/all.cc"
    # xxhash.h is a header alone, and the same for all.
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} "${SHADOWIB_CXX_${target}}" ${options} -idirafter /usr/include -MD -MF "${object}.d" -c -o "${object}"
      "${directory_here}/all.cc"
    COMMENT "Building the runtime of portable state for ${target}" VERBATIM)
  add_custom_command(OUTPUT "${library}" DEPENDS "${object}" "${CMAKE_CURRENT_SOURCE_DIR}/exports.map"
    COMMAND "${SHADOWIB_CXX_${target}}" -shared -o "${library}" "${object}" -Wl,-soname,libshadowib-portable.so -static-libstdc++ -static-libgcc
      "-Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/exports.map"
    COMMENT "Linking libshadowib-portable.so for ${target}" VERBATIM)
  add_custom_target(portable_${target} ALL DEPENDS "${library}")
  install(FILES "${library}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/shadowib/portable/${target}" COMPONENT portable OPTIONAL)
  set_property(GLOBAL APPEND PROPERTY shadowib_portable_targets portable_${target})
endfunction()

# BSPlib for programs of that architecture: lib/shadowib/portable/TARGET/libshadowib-bsp-portable.so.
function(shadowib_cross_bsp target)
  get_property(sources GLOBAL PROPERTY shadowib_bsp_portable_sources)
  if(NOT SHADOWIB_CXX_${target} OR NOT sources)
    return()
  endif()
  set(directory "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/shadowib/portable/${target}")
  set(directory_here "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  set(options -std=gnu++20 -O1 -fPIC -fvisibility=hidden -D_GNU_SOURCE -DSHADOWIB_BSP_PORTABLE -I "${PROJECT_SOURCE_DIR}"
    -I "${PROJECT_SOURCE_DIR}/shadowib/include")
  set(all "")
  foreach(source ${sources})
    string(APPEND all "#include \"${source}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT "${directory_here}/bsp.cc" CONTENT "${all}" @ONLY)
  set(object "${directory_here}/bsp.o")
  set(library "${directory}/libshadowib-bsp-portable.so")
  add_custom_command(OUTPUT "${object}" DEPFILE "${object}.d" DEPENDS "${directory_here}/bsp.cc"
    # The headers of verbs are the same for all.
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} "${SHADOWIB_CXX_${target}}" ${options} -idirafter /usr/include -MD -MF "${object}.d" -c -o "${object}"
      "${directory_here}/bsp.cc"
    COMMENT "Building BSPlib of portable programs for ${target}" VERBATIM)
  add_custom_command(OUTPUT "${library}" DEPENDS "${object}" portable_${target}
    COMMAND "${SHADOWIB_CXX_${target}}" -shared -o "${library}" "${object}" -Wl,-soname,libshadowib-bsp-portable.so -static-libstdc++ -static-libgcc
      -Wl,--exclude-libs,ALL "-Wl,-rpath,$ORIGIN" -L "${directory}" -lshadowib-portable
    COMMENT "Linking libshadowib-bsp-portable.so for ${target}" VERBATIM)
  add_custom_target(bsp_portable_${target} ALL DEPENDS "${library}")
  install(FILES "${library}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/shadowib/portable/${target}" COMPONENT portable OPTIONAL)
  set_property(GLOBAL APPEND PROPERTY shadowib_portable_targets bsp_portable_${target})
endfunction()
