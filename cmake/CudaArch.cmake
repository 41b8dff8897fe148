# nvcc under CMake 3.25 has no C++20 level of its own, hence the flag; Hopper's wgmma and setmaxnreg need the 90a target.
set(CMAKE_CUDA_ARCHITECTURES 90a-real CACHE STRING "CUDA architectures")
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
target_compile_options(kdelta_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -lineinfo>)
