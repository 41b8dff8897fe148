#include "frontends/python/tensor.h"

#include <string>

namespace kdelta::python {

struct ManagedVersioned;
struct ExchangeApi {
  uint32_t major, minor;
  const ExchangeApi* previous;  // of an earlier major version
  int (*allocate)(DLTensor*, ManagedVersioned**, void*, void (*)(void*, const char*, const char*));
  int (*managed_of)(void* object, ManagedVersioned** out);
  int (*object_of)(ManagedVersioned* managed, void** object);
  int (*view_of)(void* object, DLTensor* out);  // the object stays the owner of all
  int (*current_stream)(DLDeviceType type, int32_t device, void** out);
};
struct ManagedVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  DLTensor tensor;
};

namespace {

// What a capsule held before DLPack 1.0.
struct Managed {
  DLTensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
constexpr uint64_t kReadOnly = 1;
constexpr const char *kOld = "dltensor", *kNew = "dltensor_versioned";

PyObject* interned(const char* text) {
  return PyUnicode_InternFromString(text);
}

// The functions of the library that a type is of, null if it has none. Most calls ask for one type alone.
const ExchangeApi* api_of(PyTypeObject* type) {
  static PyObject* const name = interned("__dlpack_c_exchange_api__");
  static PyTypeObject* last = nullptr;
  static const ExchangeApi* found = nullptr;
  if (type == last) return found;
  Py_INCREF(type);  // so that no other type comes to lie there
  Py_XDECREF(last);
  last = type;
  found = nullptr;
  const nb::object capsule = nb::steal(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name));
  if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
    PyErr_Clear();
    return nullptr;
  }
  found = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (found != nullptr && found->major > 1) found = found->previous;
  return found;
}

// torch refuses to lend what a gradient is wanted of by __dlpack__ alone.
bool wants_gradient(nb::handle object) {
  static PyObject* const name = interned("requires_grad");
  const nb::object wanted = nb::steal(PyObject_GetAttr(object.ptr(), name));
  if (!wanted.is_valid()) PyErr_Clear();
  return wanted.ptr() == Py_True;
}

bool lies_on_cuda(nb::handle object) {
  const nb::object device = object.attr("__dlpack_device__")();
  const int type = nb::cast<int>(nb::int_(device[0]));
  return type == kDLCUDA || type == kDLCUDAManaged;
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

Borrowed::Borrowed(int device, nb::handle stream) : cuda_(true), stream_known_(!stream.is_none()), device_(device) {
  items_.reserve(kMost);
  if (stream_known_) stream_ = reinterpret_cast<void*>(nb::cast<uintptr_t>(stream));
}

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

// obj.__dlpack__(...), asking for the new generation first. Only what lies on a CUDA device is told of a queue.
nb::object Borrowed::capsule_of(nb::handle object) {
  static PyObject* const method = interned("__dlpack__");
  static PyObject* const names = PyTuple_Pack(2, interned("max_version"), interned("stream"));
  static PyObject* const name_alone = PyTuple_Pack(1, interned("max_version"));
  static PyObject* const stream_alone = PyTuple_Pack(1, interned("stream"));
  static PyObject* const newest = PyTuple_Pack(2, PyLong_FromLong(1), PyLong_FromLong(0));
  nb::object stream = nb::none();
  if (cuda_) {
    stream_known_ = true;
    if (lies_on_cuda(object)) {
      constexpr uintptr_t kDefault = 1;  // DLPack's number of the default stream, whose handle is null
      const auto handle = reinterpret_cast<uintptr_t>(stream_);
      stream = nb::int_(handle == 0 ? kDefault : handle);
    }
  }
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

bool Borrowed::in_our_queue(const ExchangeApi& api) {
  if (!cuda_) return true;
  if (&api == asked_) return ours_;
  void* current = nullptr;
  if (api.current_stream(kDLCUDA, device_, &current) != 0) {
    PyErr_Clear();
    return false;
  }
  if (!stream_known_) stream_ = current, stream_known_ = true;
  asked_ = &api;
  return ours_ = current == stream_;
}

const DLTensor* Borrowed::through_api(const ExchangeApi& api, nb::handle object, bool written, bool* read_only) {
  items_.emplace_back();
  Item& item = items_.back();
  if (!written) {
    if (api.view_of(object.ptr(), &item.tensor) != 0) throw nb::python_error();
    return &item.tensor;
  }
  ManagedVersioned* managed = nullptr;  // which alone says whether it may be written
  if (api.managed_of(object.ptr(), &managed) != 0) throw nb::python_error();
  item.managed = managed, item.versioned = true;
  *read_only = (managed->flags & kReadOnly) != 0;
  return &managed->tensor;
}

const DLTensor* Borrowed::view(nb::handle object, const char* op, const char* argument, bool written) {
  const auto refuse = [op, argument](PyObject* type, const std::string& what) {
    PyErr_SetString(type, (std::string(op) + ": " + argument + ": " + what).c_str());
    throw nb::python_error();
  };
  if (items_.size() == kMost) refuse(PyExc_ValueError, "one argument too many");
  bool read_only = false;
  const ExchangeApi* api = api_of(Py_TYPE(object.ptr()));
  if (api != nullptr && in_our_queue(*api) && !wants_gradient(object)) {
    const DLTensor* tensor = nullptr;
    try {
      tensor = through_api(*api, object, written, &read_only);
    } catch (nb::python_error& e) {
      refuse(PyExc_ValueError, e.what());
    }
    if (read_only) refuse(PyExc_ValueError, "read-only, but the operator writes it");
    return tensor;
  }
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
      capsule = capsule_of(source);
    } catch (nb::python_error& e) {
      refuse(PyExc_ValueError, e.what());
    }
  }
  items_.emplace_back();
  Item& item = items_.back();
  const DLTensor* tensor = nullptr;
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
  item.tensor = *tensor;
  item.tensor.dtype = {kDLBfloat, 16, 1};
  return &item.tensor;
}

}  // namespace kdelta::python
