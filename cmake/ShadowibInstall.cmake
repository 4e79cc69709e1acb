# Install rules, package files and the uninstall target. Everything is found relative to where it lies, so that a
# prefix can be moved or reached through a symbolic link.
#
#   bin/shadowib, bin/shadowib-pingpong, bin/shadowib-storm
#   bin/bsprun, bin/bspcc, bin/bspcxx        lib/libshadowib-bsp.so, include/bsp.h
#   lib/libshadowib.so -> libshadowib.so.0 -> libshadowib.so.<version>
#   lib/shadowib/libshadowib-<backend>.so      lib/shadowib/dropin/libibverbs.so{,.1}
#   lib/pkgconfig/shadowib.pc                  lib/cmake/shadowib/
#   include/shadowib/shadowib.h                share/man/, share/doc/shadowib/, completions of bash and zsh
include(CMakePackageConfigHelpers)
include(ShadowibDropin)

set(shadowib_private_dir "${CMAKE_INSTALL_LIBDIR}/shadowib")
set(shadowib_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/shadowib")

# Installs `target` if this configuration builds it. Components are packages (ShadowibPackages.cmake).
function(shadowib_install_target target destination component)
  if(TARGET ${target})
    install(TARGETS ${target} RUNTIME DESTINATION "${destination}" COMPONENT ${component}
      LIBRARY DESTINATION "${destination}" COMPONENT ${component} NAMELINK_COMPONENT ${component})
  endif()
endfunction()

shadowib_install_target(shadowib_cli "${CMAKE_INSTALL_BINDIR}" command)
shadowib_install_target(shadowib-pingpong "${CMAKE_INSTALL_BINDIR}" command)
shadowib_install_target(ib2tcp_backend "${shadowib_private_dir}" library)
shadowib_install_target(shadowib_join "${shadowib_private_dir}" library)
shadowib_install_target(shadowib_dropin "${shadowib_private_dir}/dropin" library)
shadowib_install_target(bsprun "${CMAKE_INSTALL_BINDIR}" command)
shadowib_install_target(shadowib_bsp "${CMAKE_INSTALL_LIBDIR}" library)
if(TARGET shadowib_bsp)
  install(PROGRAMS "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/bspcc" "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/bspcxx"
    DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT development)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/libraries/bsp/include/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
    COMPONENT development)
endif()
if(TARGET shadowib-storm)  # a tool of tests, and no part of the product: installed if it was built
  install(TARGETS shadowib-storm RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT tests OPTIONAL)
endif()

# Completions, from what the command says of itself.
set(completions "")
foreach(shell bash zsh)
  set(script "${PROJECT_BINARY_DIR}/completions/shadowib.${shell}")
  list(APPEND completions "${script}")
  add_custom_command(OUTPUT "${script}" DEPENDS shadowib_cli
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${PROJECT_BINARY_DIR}/completions"
    COMMAND shadowib_cli --completion ${shell} >"${script}")
endforeach()
add_custom_target(shadowib_completions ALL DEPENDS ${completions})
install(FILES "${PROJECT_BINARY_DIR}/completions/shadowib.bash" RENAME shadowib
  DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT command)
install(FILES "${PROJECT_BINARY_DIR}/completions/shadowib.zsh" RENAME _shadowib
  DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions" COMPONENT command)

# All that is installed, and nothing that tests need.
add_custom_target(product
  DEPENDS shadowib_cli shadowib-pingpong shadowib_shared shadowib_join ib2tcp_backend shadowib_dropin shadowib_completions)
if(TARGET shadowib_bsp)
  add_dependencies(product shadowib_bsp bsprun)
endif()

install(FILES "${PROJECT_SOURCE_DIR}/shadowib/include/shadowib/shadowib.h"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/shadowib" COMPONENT development)
foreach(section 1 3 5 7)
  file(GLOB pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/man/*.${section}"
    "${PROJECT_SOURCE_DIR}/docs/man/man${section}/*.${section}")
  foreach(page IN LISTS pages)
    set(component command)
    if(page MATCHES "shadowib-storm")
      set(component tests)
    elseif(page MATCHES "bspcc")
      set(component development)
    elseif(page MATCHES "shadowib-(cc|values)")
      set(component portable)
    endif()
    install(FILES "${page}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}" COMPONENT ${component})
  endforeach()
endforeach()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT documentation
  PATTERN man EXCLUDE)
install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\"
  \"-DDIRECTORY=\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}\" -P \"${CMAKE_CURRENT_LIST_DIR}/installed_docs.cmake\"
  COMMAND_ERROR_IS_FATAL ANY)" COMPONENT documentation)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples/batch" DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples" COMPONENT documentation
  USE_SOURCE_PERMISSIONS FILES_MATCHING PATTERN "*.sh")

# pkg-config: the prefix is computed from where the .pc file lies.
file(RELATIVE_PATH shadowib_pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" shadowib_pc_to_prefix "${shadowib_pc_to_prefix}")
configure_file("${CMAKE_CURRENT_LIST_DIR}/shadowib.pc.in" "${PROJECT_BINARY_DIR}/shadowib.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/shadowib.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)

if(TARGET shadowib_shared)
  set_target_properties(shadowib_shared PROPERTIES EXPORT_NAME shadowib VERSION "${PROJECT_VERSION}" SOVERSION 0)
  install(TARGETS shadowib_shared EXPORT shadowib-targets
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT development
    INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  include("${PROJECT_SOURCE_DIR}/libraries/masterworker/install.cmake")
  install(EXPORT shadowib-targets NAMESPACE shadowib:: DESTINATION "${shadowib_package_dir}" COMPONENT development)
  configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/shadowib-config.cmake.in"
    "${PROJECT_BINARY_DIR}/shadowib-config.cmake" INSTALL_DESTINATION "${shadowib_package_dir}"
    NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/shadowib-config-version.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/shadowib-config.cmake" "${PROJECT_BINARY_DIR}/shadowib-config-version.cmake"
    DESTINATION "${shadowib_package_dir}" COMPONENT development)
endif()

add_custom_target(uninstall
  COMMAND "${CMAKE_COMMAND}" "-DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt" -P
    "${CMAKE_CURRENT_LIST_DIR}/uninstall.cmake"
  COMMENT "Removing what the last install put in place" VERBATIM)

if(BUILD_TESTING AND TARGET shadowib_shared)
  add_test(NAME install_test COMMAND bash "${CMAKE_CURRENT_LIST_DIR}/install_test.sh" "${PROJECT_SOURCE_DIR}"
    "${PROJECT_BINARY_DIR}" "${CMAKE_INSTALL_LIBDIR}")
  set_tests_properties(install_test PROPERTIES LABELS conformance TIMEOUT 900 SKIP_RETURN_CODE 77
    ENVIRONMENT "SHADOWIB_SANITIZE=${SHADOWIB_SANITIZE}")
endif()
