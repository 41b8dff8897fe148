#include "frontends/python/tensor.h"

#include <string>

namespace kdelta::python {
namespace {

// The two generations of what a capsule holds (DLPack 0.x and 1.x).
struct Managed {
  DLTensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
struct ManagedVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  DLTensor tensor;
};
constexpr uint64_t kReadOnly = 1;
constexpr const char *kOld = "dltensor", *kNew = "dltensor_versioned";

PyObject* interned(const char* text) {
  return PyUnicode_InternFromString(text);
}

// obj.__dlpack__(...), asking for the new generation first.
nb::object capsule_of(nb::handle object, nb::handle stream) {
  static PyObject* const method = interned("__dlpack__");
  static PyObject* const names = PyTuple_Pack(2, interned("max_version"), interned("stream"));
  static PyObject* const name_alone = PyTuple_Pack(1, interned("max_version"));
  static PyObject* const stream_alone = PyTuple_Pack(1, interned("stream"));
  static PyObject* const newest = PyTuple_Pack(2, PyLong_FromLong(1), PyLong_FromLong(0));
  PyObject* words[] = {object.ptr(), newest, stream.ptr()};
  PyObject* made = PyObject_VectorcallMethod(method, words, 1, stream.is_none() ? name_alone : names);
  if (made == nullptr && PyErr_ExceptionMatches(PyExc_TypeError)) {  // from before max_version
    PyErr_Clear();
    words[1] = stream.ptr();
    made = PyObject_VectorcallMethod(method, words, 1, stream.is_none() ? nullptr : stream_alone);
  }
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

// numpy arrays of ml_dtypes' bfloat16 export no DLPack; as uint16 they do. Its kind is looked at first: the name of a
// dtype takes numpy some microseconds.
bool is_numpy_bf16(nb::handle object) {
  static PyObject *const dtype_name = interned("dtype"), *const kind_name = interned("kind");
  const nb::object dtype = nb::steal(PyObject_GetAttr(object.ptr(), dtype_name));
  if (!dtype.is_valid()) {
    PyErr_Clear();
    return false;
  }
  const nb::object kind = nb::steal(PyObject_GetAttr(dtype.ptr(), kind_name));
  if (!kind.is_valid()) {
    PyErr_Clear();
    return false;
  }
  if (!PyUnicode_Check(kind.ptr()) || PyUnicode_CompareWithASCIIString(kind.ptr(), "V") != 0) return false;
  const nb::object name = nb::getattr(dtype, "name", nb::none());
  return nb::isinstance<nb::str>(name) && std::string(nb::cast<nb::str>(name).c_str()) == "bfloat16";
}

}  // namespace

Borrowed::~Borrowed() {
  for (Item& item : items_) {
    if (item.managed == nullptr) continue;
    if (item.versioned) {
      auto* m = static_cast<ManagedVersioned*>(item.managed);
      if (m->deleter != nullptr) m->deleter(m);
    } else {
      auto* m = static_cast<Managed*>(item.managed);
      if (m->deleter != nullptr) m->deleter(m);
    }
  }
}

const DLTensor* Borrowed::view(nb::handle object, const char* op, const char* argument, bool written,
                               nb::handle stream) {
  const auto refuse = [op, argument](PyObject* type, const std::string& what) {
    PyErr_SetString(type, (std::string(op) + ": " + argument + ": " + what).c_str());
    throw nb::python_error();
  };
  const bool bf16 = is_numpy_bf16(object);
  nb::object source = nb::borrow(object);
  if (bf16) source = object.attr("view")("uint16");
  if (!PyCapsule_CheckExact(object.ptr()) && !nb::hasattr(source, "__dlpack__"))
    refuse(PyExc_TypeError, nb::cast<std::string>(nb::repr(object.type())) +
                                ", expected an array that speaks DLPack (numpy, torch, jax, ...)");
  nb::object capsule;
  if (PyCapsule_CheckExact(object.ptr())) {
    capsule = nb::borrow(object);
  } else {
    try {
      capsule = capsule_of(source, stream);
    } catch (nb::python_error& e) {
      refuse(PyExc_ValueError, e.what());
    }
  }
  items_.emplace_back();
  Item& item = items_.back();
  const DLTensor* tensor = nullptr;
  bool read_only = false;
  const char* generation = PyCapsule_GetName(capsule.ptr());
  const std::string kind = generation == nullptr ? "" : generation;
  if (kind == kNew) {
    auto* m = static_cast<ManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), kNew));
    if (m->major != 1) refuse(PyExc_ValueError, std::string("DLPack ") + std::to_string(m->major) + ", expected 1");
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    item.managed = m, item.versioned = true;
    tensor = &m->tensor;
    read_only = (m->flags & kReadOnly) != 0;
  } else if (kind == kOld) {
    auto* m = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), kOld));
    PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    item.managed = m;
    tensor = &m->tensor;
  } else {
    refuse(PyExc_ValueError, std::string("a capsule named '") + kind + "', expected a DLPack one that nobody used yet");
  }
  item.capsule = capsule;
  if (written && read_only) refuse(PyExc_ValueError, "read-only, but the operator writes it");
  if (!bf16) return tensor;
  item.changed = std::make_unique<DLTensor>(*tensor);
  item.changed->dtype = {kDLBfloat, 16, 1};
  return item.changed.get();
}

}  // namespace kdelta::python
