// Arguments that speak DLPack, borrowed for one call.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "kdelta/api/dlpack.h"

namespace kdelta::python {

namespace nb = nanobind;

struct ExchangeApi;  // of DLPack 1.3: a library's own functions, without Python in between

// Everything borrowed by one call; given back when it ends.
class Borrowed {
 public:
  // For work on the CPU.
  Borrowed() { items_.reserve(kMost); }
  // For work on a CUDA device: in that queue (an integer, a cudaStream_t), or, for None, in the current one of the
  // first library that says which that is (torch 2.10 and later), otherwise in the default stream.
  Borrowed(int device, nb::handle stream);
  ~Borrowed();
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  // The view of an object that has __dlpack__ (either generation of capsule), or of a numpy array of ml_dtypes'
  // bfloat16. Throws TypeError or ValueError naming the argument; `written` refuses what is read-only. Whoever made a
  // CUDA tensor has ordered its work before what comes to the queue.
  const DLTensor* view(nb::handle object, const char* op, const char* argument, bool written);
  // Where the work goes, after the last view.
  void* stream() const { return stream_; }

 private:
  struct Item {
    void* managed = nullptr;
    bool versioned = false;
    DLTensor tensor{};
    nb::object capsule;
  };
  static constexpr size_t kMost = 32;  // never moved

  const DLTensor* through_api(const ExchangeApi& api, nb::handle object, bool written, bool* read_only);
  bool in_our_queue(const ExchangeApi& api);
  nb::object capsule_of(nb::handle object);

  bool cuda_ = false, stream_known_ = true;
  int device_ = 0;
  void* stream_ = nullptr;
  const ExchangeApi* asked_ = nullptr;  // and whether its current queue is ours
  bool ours_ = false;
  std::vector<Item> items_;
};

}  // namespace kdelta::python
