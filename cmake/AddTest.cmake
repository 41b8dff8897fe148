# kdelta_add_test(test_name source... [SANITIZED]): a GoogleTest program whose cases ctest knows one by one. SANITIZED ones are also
# what ./test --sanitize builds and runs.
include(GoogleTest)
if(NOT TARGET sanitized_tests)
  add_custom_target(sanitized_tests)
endif()
function(kdelta_add_test name)
  cmake_parse_arguments(ARG "SANITIZED" "" "" ${ARGN})
  add_executable(${name} ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE kdelta_flags kdelta_test_support GTest::gtest GTest::gmock GTest::gtest_main)
  # Tests are not what is measured: cheaper to compile, and checks stay on.
  target_compile_options(${name} PRIVATE -O1 -UNDEBUG)
  set(label plain)
  if(ARG_SANITIZED)
    set(label sanitized)
    add_dependencies(sanitized_tests ${name})
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 600 LABELS ${label} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endfunction()
