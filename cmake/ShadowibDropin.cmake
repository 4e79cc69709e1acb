# The drop-in directory: the names a program dlopens, for programs LD_PRELOAD alone does not catch (NCCL's
# dlopen("libibverbs.so") + dlvsym).
#
# libibverbs.so.1 there defines every version node of the installed library and no symbol; the symbols are
# found in its one dependency, libshadowib.so, which is thus loaded once however it is reached.
# In the build tree: lib/dropin, and lib/shadowib/dropin as installed.
if(NOT TARGET shadowib_shared)
  return()
endif()

add_library(shadowib_dropin SHARED "${SHADOWIB_CENSUS_DIR}/dropin.c")
add_dependencies(shadowib_dropin shadowib_census)
target_link_libraries(shadowib_dropin PRIVATE shadowib_shared)
# RPATH, not RUNPATH: a library path in the environment must not put another shim underneath.
target_link_options(shadowib_dropin PRIVATE "LINKER:--version-script=${SHADOWIB_CENSUS_DIR}/dropin.map"
  "LINKER:--disable-new-dtags" "LINKER:--no-as-needed")
set_target_properties(shadowib_dropin PROPERTIES OUTPUT_NAME ibverbs SOVERSION 1
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/dropin"
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN/..:$ORIGIN/../.."
  LINK_DEPENDS "${SHADOWIB_CENSUS_DIR}/dropin.map")
file(MAKE_DIRECTORY "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/shadowib")
file(CREATE_LINK ../dropin "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/shadowib/dropin" SYMBOLIC)

shadowib_test(NAME exports_test LABELS conformance SOURCES "${PROJECT_SOURCE_DIR}/shadowib/abi/exports_test.cc"
  LIBS shadowib_census_reader ${CMAKE_DL_LIBS})
if(TARGET exports_test)
  add_dependencies(exports_test shadowib_shared shadowib_dropin)
  target_compile_definitions(exports_test PRIVATE SHADOWIB_LIBRARY="$<TARGET_FILE:shadowib_shared>"
    SHADOWIB_DROPIN_DIR="$<TARGET_FILE_DIR:shadowib_dropin>")
  if(SHADOWIB_SANITIZE)
    target_compile_definitions(exports_test PRIVATE SHADOWIB_SANITIZED)
  endif()
endif()

shadowib_test(NAME load_test LABELS unit SOURCES "${PROJECT_SOURCE_DIR}/shadowib/abi/load_test.cc"
  LIBS shadowib_census_reader ${CMAKE_DL_LIBS})
if(TARGET load_test)
  add_dependencies(load_test shadowib_shared)
  target_compile_definitions(load_test PRIVATE SHADOWIB_LIBRARY="$<TARGET_FILE:shadowib_shared>")
endif()
