# The folders' static libraries also make up the shared one: their code may lie anywhere, and shows only what is marked KDELTA_API
# (kdelta/api/export.h).
function(kdelta_part_of_shared library)
  if(NOT KDELTA_SHARED)
    return()
  endif()
  set(flags -fPIC -fvisibility=hidden -fvisibility-inlines-hidden)
  list(JOIN flags "," passed)
  target_compile_options(${library} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${flags}>" $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${passed}>)
endfunction()
