# Debian packages, by CPack: in the build tree, after the target `product`, run cpack -B DIRECTORY.
#
#   libshadowib0      the shim, its backends, the drop-in directory
#   libshadowib-dev   header, link, pkg-config, CMake
#   shadowib          commands, manual pages, completions
#   shadowib-doc      documentation
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL library development command documentation)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME shadowib)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "shadowib maintainers <maintainers@shadowib.example>")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
# Compresses pages, adds to each package its licence and its changes.
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/debian_files.cmake")
set(CPACK_SHADOWIB_SOURCE_DIR "${PROJECT_SOURCE_DIR}")

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# The drop-in library needs libshadowib.so.0 of the same package.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")

# shadowib_deb(COMPONENT name section "summary" "description" depends)
function(shadowib_deb component name section summary description depends)
  string(TOUPPER ${component} upper)
  set(prefix CPACK_DEBIAN_${upper})
  set(${prefix}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(${prefix}_PACKAGE_SECTION ${section} PARENT_SCOPE)
  set(${prefix}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
  set(${prefix}_PACKAGE_DEPENDS "${depends}" PARENT_SCOPE)
  if(component MATCHES "library|command")
    set(${prefix}_PACKAGE_SHLIBDEPS ON PARENT_SCOPE)
  else()
    set(${prefix}_PACKAGE_ARCHITECTURE all PARENT_SCOPE)
  endif()
endfunction()

set(same "(= ${PROJECT_VERSION}-1)")
shadowib_deb(library libshadowib0 libs "shadow device driver for RDMA verbs in user space"
  "Stands between a program and libibverbs, so that the program can be checkpointed to files and restarted elsewhere."
  "libibverbs1")
shadowib_deb(development libshadowib-dev libdevel "shadow device driver for RDMA verbs: development files"
  "The header and the link for programs that ask for their own checkpoints." "libshadowib0 ${same}")
shadowib_deb(command shadowib net "checkpoint and restart of unmodified RDMA programs"
  "Starts programs under shadowib, saves them to files while they run, and starts them again." "libshadowib0 ${same}")
shadowib_deb(documentation shadowib-doc doc "documentation of shadowib" "Guide, concepts and reference." "")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "libfabric1")  # for SHADOWIB_IB2TCP_TRANSPORT=ofi:PROVIDER
set(CPACK_DEBIAN_LIBRARY_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_ARCHITECTURE amd64)  # holds a link into a directory of libraries
include(CPack)
