// Whether a checkpoint's values are numbers. Loading looks at scales and vectors alone: the rest would have to be read
// whole before the first answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kdelta {

struct DamagedTensor {
  std::string name, dtype, file;
  int64_t values = 0;   // of the tensor
  int64_t damaged = 0;  // of them: NaN, infinite
  int64_t first = 0;    // index of the first of these
};

// Reads every tensor file of `directory` whole. Empty: all values are numbers. Throws Error(bad_file) as loading does
// for files that are no checkpoint, Error(failed) when cancelled.
std::vector<DamagedTensor> check_values(const std::string& directory,
                                        const std::function<void(int64_t done, int64_t total)>& progress = {},
                                        const std::atomic<bool>* cancel = nullptr);

}  // namespace kdelta
