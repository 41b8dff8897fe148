# Every fuzz_*.cc of a folder becomes one libFuzzer program of that name. Needs clang, and all but the kernels instrumented:
#   CMAKE_CXX_COMPILER=clang++, KDELTA_SANITIZE=fuzzer-no-link,address,undefined, KDELTA_BUILD_FUZZERS=ON
# Run: fuzz_json -max_total_time=600 CORPUS_FOLDER; those that deal bytes out as choices (kdelta/io/fuzz_input.h) get further with
# -len_control=0 -max_len=128 and TMPDIR in memory. A finding becomes a case of the folder's tests.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang OR NOT KDELTA_SANITIZE MATCHES fuzzer-no-link)
  message(FATAL_ERROR "KDELTA_BUILD_FUZZERS needs clang and KDELTA_SANITIZE=fuzzer-no-link,address,undefined; found "
                      "${CMAKE_CXX_COMPILER_ID} and '${KDELTA_SANITIZE}'")
endif()
add_custom_target(kdelta_fuzzers)  # all of them
function(kdelta_add_fuzzers library)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fuzz_*.cc)
  foreach(source ${sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE ${library})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_dependencies(kdelta_fuzzers ${name})
  endforeach()
endfunction()
