# Install rules, package files and the uninstall target. Everything is found relative to where it lies, so that a
# prefix can be moved or reached through a symbolic link.
#
#   bin/shadowib, bin/shadowib-pingpong, bin/shadowib-storm
#   lib/libshadowib.so -> libshadowib.so.0 -> libshadowib.so.<version>
#   lib/shadowib/libshadowib-<backend>.so      lib/shadowib/dropin/libibverbs.so{,.1}
#   lib/pkgconfig/shadowib.pc                  lib/cmake/shadowib/
#   include/shadowib/shadowib.h                share/man/
include(CMakePackageConfigHelpers)
include(ShadowibDropin)

set(shadowib_private_dir "${CMAKE_INSTALL_LIBDIR}/shadowib")
set(shadowib_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/shadowib")

# Installs `target` if this configuration builds it.
function(shadowib_install_target target destination)
  if(TARGET ${target})
    install(TARGETS ${target} RUNTIME DESTINATION "${destination}" LIBRARY DESTINATION "${destination}")
  endif()
endfunction()

shadowib_install_target(shadowib_cli "${CMAKE_INSTALL_BINDIR}")
shadowib_install_target(shadowib-pingpong "${CMAKE_INSTALL_BINDIR}")
shadowib_install_target(ib2tcp_backend "${shadowib_private_dir}")
shadowib_install_target(shadowib_dropin "${shadowib_private_dir}/dropin")
if(TARGET shadowib-storm)  # a tool of tests, and no part of the product: installed if it was built
  install(TARGETS shadowib-storm RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" OPTIONAL)
endif()

# All that is installed, and nothing that tests need.
add_custom_target(product DEPENDS shadowib_cli shadowib-pingpong shadowib_shared ib2tcp_backend shadowib_dropin)

install(FILES "${PROJECT_SOURCE_DIR}/shadowib/include/shadowib/shadowib.h"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/shadowib")
foreach(section 1 3 5 7)
  file(GLOB pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/docs/man/*.${section}"
    "${PROJECT_SOURCE_DIR}/docs/man/man${section}/*.${section}")
  install(FILES ${pages} DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}")
endforeach()

# pkg-config: the prefix is computed from where the .pc file lies.
file(RELATIVE_PATH shadowib_pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" shadowib_pc_to_prefix "${shadowib_pc_to_prefix}")
configure_file("${CMAKE_CURRENT_LIST_DIR}/shadowib.pc.in" "${PROJECT_BINARY_DIR}/shadowib.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/shadowib.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(TARGET shadowib_shared)
  set_target_properties(shadowib_shared PROPERTIES EXPORT_NAME shadowib VERSION "${PROJECT_VERSION}" SOVERSION 0)
  install(TARGETS shadowib_shared EXPORT shadowib-targets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
    INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT shadowib-targets NAMESPACE shadowib:: DESTINATION "${shadowib_package_dir}")
  configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/shadowib-config.cmake.in"
    "${PROJECT_BINARY_DIR}/shadowib-config.cmake" INSTALL_DESTINATION "${shadowib_package_dir}"
    NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/shadowib-config-version.cmake"
    COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/shadowib-config.cmake" "${PROJECT_BINARY_DIR}/shadowib-config-version.cmake"
    DESTINATION "${shadowib_package_dir}")
endif()

add_custom_target(uninstall
  COMMAND "${CMAKE_COMMAND}" "-DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt" -P
    "${CMAKE_CURRENT_LIST_DIR}/uninstall.cmake"
  COMMENT "Removing what the last install put in place" VERBATIM)

if(BUILD_TESTING AND TARGET shadowib_shared)
  add_test(NAME install_test COMMAND bash "${CMAKE_CURRENT_LIST_DIR}/install_test.sh" "${PROJECT_SOURCE_DIR}"
    "${PROJECT_BINARY_DIR}" "${CMAKE_INSTALL_LIBDIR}")
  set_tests_properties(install_test PROPERTIES LABELS conformance TIMEOUT 180 SKIP_RETURN_CODE 77
    ENVIRONMENT "SHADOWIB_SANITIZE=${SHADOWIB_SANITIZE}")
endif()
