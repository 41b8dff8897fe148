# An op is a folder of kdelta/ops. kdelta_add_op(norm) puts every source of the folder into the library, builds its test.cc as
# test_norm and hands its bench.cc to the kdelta_bench program. Instruction sets are a file-name suffix, each compiled with
# its own flags: *_avx2.cc, *_avx512.cc, *_avx512_bf16.cc, *_amx.cc. A CUDA build adds the folder's *.cu to the library and its
# test_cuda* and bench_cuda* to the one program kdelta_gpu_tests.
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

# The folder's test_cuda* and bench_cuda* (.cu or .cc), for kdelta_gpu_tests.
function(kdelta_add_gpu_tests folder)
  foreach(kind test bench)
    foreach(ending cu cc)
      file(GLOB found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${kind}_cuda*.${ending})
      set_property(GLOBAL APPEND PROPERTY KDELTA_GPU_TEST_SOURCES ${found})
    endforeach()
  endforeach()
endfunction()

function(kdelta_add_op name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/(test|bench)[a-z_0-9]*\\.cc$")
  list(TRANSFORM sources REPLACE "^${CMAKE_CURRENT_SOURCE_DIR}/" "")
  kdelta_set_isa_flags(${sources})
  target_sources(kdelta_ops PRIVATE ${sources})
  if(KDELTA_CUDA)
    file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cu)
    list(FILTER kernels EXCLUDE REGEX "/(test|bench)[a-z_0-9]*\\.cu$")
    target_sources(kdelta_ops PRIVATE ${kernels})
    kdelta_add_gpu_tests(${name})
  endif()
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/test*.cc)
  list(FILTER tests EXCLUDE REGEX "/test_cuda[a-z_0-9]*\\.cc$")
  kdelta_set_isa_flags(${tests})
  if(KDELTA_BUILD_TESTS AND tests)
    kdelta_add_test(test_${name} ${tests})
    target_link_libraries(test_${name} PRIVATE kdelta_ops)
  endif()
  file(GLOB benches CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/bench*.cc)
  list(FILTER benches EXCLUDE REGEX "/bench_cuda[a-z_0-9]*\\.cc$")
  set_property(GLOBAL APPEND PROPERTY KDELTA_BENCH_SOURCES ${benches})
endfunction()
