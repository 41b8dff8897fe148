# nvcc under CMake 3.25 has no C++20 level of its own, hence the flag; Hopper's wgmma and setmaxnreg need the 90a target.
set(CMAKE_CUDA_ARCHITECTURES 90a-real CACHE STRING "CUDA architectures")
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# -fmad=false as -ffp-contract=off: a fused multiply-add appears only where the source asks for one (fmaf), so that the forms of
# one kernel agree bit for bit.
target_compile_options(kdelta_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -fmad=false --compress-mode=size
  --expt-relaxed-constexpr --Werror cross-execution-space-call -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-Wno-missing-field-initializers>)
