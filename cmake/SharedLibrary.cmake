# The shared library and what of it is installed: one library behind two targets, kdelta::ops and kdelta::engine, the same names in
# the build tree (add_subdirectory) and in the installed package (find_package), and a pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The number of the binary interface is written where programs read it.
file(STRINGS ${PROJECT_SOURCE_DIR}/kdelta/api/c_base.h abi_line REGEX "^#define KDELTA_ABI_VERSION [0-9]+$")
string(REGEX REPLACE ".* " "" KDELTA_ABI "${abi_line}")

set(map ${PROJECT_BINARY_DIR}/kdelta.map)
configure_file(${PROJECT_SOURCE_DIR}/cmake/kdelta.map.in ${map} @ONLY)

add_library(kdelta_shared SHARED)
target_link_libraries(kdelta_shared PRIVATE $<LINK_LIBRARY:WHOLE_ARCHIVE,kdelta_api>)
set_target_properties(kdelta_shared PROPERTIES OUTPUT_NAME kdelta EXPORT_NAME kdelta LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${KDELTA_ABI} LINK_DEPENDS ${map}
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
target_link_options(kdelta_shared PRIVATE LINKER:--version-script=${map} LINKER:--no-undefined LINKER:--gc-sections)
target_compile_features(kdelta_shared INTERFACE cxx_std_20)  # ops.h and engine.h ask for it; a project in C alone is not touched
set(doors c.h c_base.h c_engine.h c_ops.h dlpack.h export.h ops.h engine.h options.h service.h)
list(TRANSFORM doors PREPEND ${PROJECT_SOURCE_DIR}/kdelta/api/)
target_sources(kdelta_shared PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${doors})
add_library(kdelta::kdelta ALIAS kdelta_shared)
foreach(component ops engine)
  add_library(kdelta_door_${component} INTERFACE)
  target_link_libraries(kdelta_door_${component} INTERFACE kdelta_shared)
  set_target_properties(kdelta_door_${component} PROPERTIES EXPORT_NAME ${component})
  add_library(kdelta::${component} ALIAS kdelta_door_${component})
endforeach()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/kdelta)
install(TARGETS kdelta_shared kdelta_door_ops kdelta_door_engine EXPORT kdeltaTargets COMPONENT library
        LIBRARY COMPONENT library FILE_SET HEADERS COMPONENT library)
install(EXPORT kdeltaTargets NAMESPACE kdelta:: DESTINATION ${package} COMPONENT library)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/kdeltaConfig.cmake.in ${PROJECT_BINARY_DIR}/kdeltaConfig.cmake
                              INSTALL_DESTINATION ${package})
# Before 1.0 a minor version may change anything.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kdeltaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH prefix_from_pc /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(${PROJECT_SOURCE_DIR}/cmake/kdelta.pc.in ${PROJECT_BINARY_DIR}/kdelta.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kdeltaConfig.cmake ${PROJECT_BINARY_DIR}/kdeltaConfigVersion.cmake DESTINATION ${package}
        COMPONENT library)
install(FILES ${PROJECT_BINARY_DIR}/kdelta.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
