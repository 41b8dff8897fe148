// CPU memory behind device_allocate: 64-byte aligned, huge pages advised from 2 MiB on.
#pragma once

#include <cstdint>

namespace kdelta {

void* cpu_allocate(int64_t bytes);
void cpu_free(void* data) noexcept;

}  // namespace kdelta
