# kdelta_add_test(test_name source...): a GoogleTest program whose cases ctest knows one by one.
include(GoogleTest)
function(kdelta_add_test name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE kdelta_flags kdelta_test_support GTest::gtest GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600
                       WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endfunction()
