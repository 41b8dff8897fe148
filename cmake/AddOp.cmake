# An op is a folder of kdelta/ops. kdelta_add_op(norm) puts every source of the folder into the library, builds its test.cc as
# test_norm and hands its bench.cc to the kdelta_bench program. Instruction sets are a file-name suffix, each compiled with
# its own flags: *_avx2.cc, *_avx512.cc, *_avx512_bf16.cc, *_amx.cc.
set(KDELTA_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(KDELTA_ISA_FLAGS_avx512 ${KDELTA_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
    -Wno-maybe-uninitialized -Wno-uninitialized)  # g++ 12 warns about its own _mm512_undefined intrinsics
set(KDELTA_ISA_FLAGS_avx512_bf16 ${KDELTA_ISA_FLAGS_avx512} -mavx512bf16 -mavx512vnni -mavx512vbmi)
set(KDELTA_ISA_FLAGS_amx ${KDELTA_ISA_FLAGS_avx512_bf16} -mamx-tile -mamx-bf16)

function(kdelta_set_isa_flags)
  foreach(source ${ARGN})
    foreach(isa amx avx512_bf16 avx512 avx2)
      if(source MATCHES "_${isa}\\.cc$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${KDELTA_ISA_FLAGS_${isa}}")
        break()
      endif()
    endforeach()
  endforeach()
endfunction()

function(kdelta_add_op name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/(test|bench)[a-z_0-9]*\\.cc$")
  list(TRANSFORM sources REPLACE "^${CMAKE_CURRENT_SOURCE_DIR}/" "")
  kdelta_set_isa_flags(${sources})
  target_sources(kdelta_ops PRIVATE ${sources})
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/test*.cc)
  kdelta_set_isa_flags(${tests})
  if(KDELTA_BUILD_TESTS AND tests)
    kdelta_add_test(test_${name} ${tests})
    target_link_libraries(test_${name} PRIVATE kdelta_ops)
  endif()
  file(GLOB benches CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/bench*.cc)
  set_property(GLOBAL APPEND PROPERTY KDELTA_BENCH_SOURCES ${benches})
endfunction()
