// CPU memory behind device_allocate: 64-byte aligned, huge pages advised from 2 MiB on.
#pragma once

#include <cstdint>

namespace kdelta {

// What cpu_allocate really takes for that many: rounded up to its alignment.
int64_t cpu_rounded(int64_t bytes);
void* cpu_allocate(int64_t bytes);
void cpu_free(void* data) noexcept;

// What this process holds in memory now, and the size of its program file (an upper bound of code pages still to be
// touched); 0 where the system does not tell.
int64_t resident_bytes();
int64_t program_file_bytes();

}  // namespace kdelta
