# Installs task farms (included by cmake/ShadowibInstall.cmake).
#
#   lib/libshadowib-mw.so, lib/libshadowib-mw-seq.so     include/topc.h, include/shadowib/masterworker.h
#   bin/topcc, bin/topc++, bin/topc-config               lib/pkgconfig/topc.pc
set(farms "${PROJECT_SOURCE_DIR}/libraries/masterworker")
file(RELATIVE_PATH shadowib_bin_to_prefix "/${CMAKE_INSTALL_BINDIR}" "/")
string(REGEX REPLACE "/$" "" shadowib_bin_to_prefix "${shadowib_bin_to_prefix}")
foreach(tool topcc topc-config topc.pc)
  configure_file("${farms}/tools/${tool}.in" "${PROJECT_BINARY_DIR}/farms/${tool}" @ONLY)
endforeach()
install(PROGRAMS "${PROJECT_BINARY_DIR}/farms/topcc" "${PROJECT_BINARY_DIR}/farms/topc-config" DESTINATION "${CMAKE_INSTALL_BINDIR}"
  COMPONENT development)
install(PROGRAMS "${PROJECT_BINARY_DIR}/farms/topcc" DESTINATION "${CMAKE_INSTALL_BINDIR}" RENAME topc++ COMPONENT development)
install(FILES "${PROJECT_BINARY_DIR}/farms/topc.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
install(FILES "${farms}/include/topc.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)
install(FILES "${farms}/include/shadowib/masterworker.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/shadowib" COMPONENT development)
foreach(target shadowib_mw shadowib_mw_seq)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS ${target} EXPORT shadowib-targets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library
    NAMELINK_COMPONENT development INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
endforeach()
set_target_properties(shadowib_mw PROPERTIES EXPORT_NAME masterworker)
set_target_properties(shadowib_mw_seq PROPERTIES EXPORT_NAME masterworker_sequential)
add_dependencies(product shadowib_mw shadowib_mw_seq)
