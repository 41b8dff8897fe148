// Arguments that speak DLPack, borrowed for one call.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "kdelta/api/dlpack.h"

namespace kdelta::python {

namespace nb = nanobind;

// Everything borrowed by one call; given back when it ends.
class Borrowed {
 public:
  Borrowed() = default;
  ~Borrowed();
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  // The view of an object that has __dlpack__ (either generation of capsule), or of a numpy array of ml_dtypes'
  // bfloat16. Throws TypeError or ValueError naming the argument; `written` refuses what is read-only. `stream` is
  // passed on to CUDA tensors.
  const DLTensor* view(nb::handle object, const char* op, const char* argument, bool written, nb::handle stream);

 private:
  struct Item {
    void* managed = nullptr;
    bool versioned = false;
    std::unique_ptr<DLTensor> changed;  // a copy of the view, with another dtype
    nb::object capsule;
  };
  std::vector<Item> items_;
};

}  // namespace kdelta::python
