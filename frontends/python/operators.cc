// The operators: keyword arguments become the fields of the C interface's structs of the same names.
#include "frontends/python/tensor.h"

#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "kdelta/api/c.h"

namespace kdelta::python {
namespace {

enum class Kind { tensor, written, i32, i64, f32 };
struct Field {
  const char* name;
  size_t offset;
  Kind kind;
};
struct Operator {
  size_t size;
  kdelta_status (*run)(kdelta_context*, const void*, const kdelta_launch*);
  kdelta_status (*workspace)(kdelta_context*, const void*, size_t*);
  std::vector<Field> fields;
};

#define IN(field) \
  { #field, offsetof(Args, field), Kind::tensor }
#define OUT(field) \
  { #field, offsetof(Args, field), Kind::written }
#define I32(field) \
  { #field, offsetof(Args, field), Kind::i32 }
#define I64(field) \
  { #field, offsetof(Args, field), Kind::i64 }
#define F32(field) \
  { #field, offsetof(Args, field), Kind::f32 }
#define SEQ(field, kind) \
  { #field, offsetof(Args, seq) + offsetof(Seq, field), Kind::kind }
#define SEQUENCES                                                                                       \
  SEQ(cu, tensor), SEQ(slot, tensor), SEQ(accepted, tensor), SEQ(fresh, tensor), SEQ(snapshot, tensor), \
      SEQ(n_prefill, i32), SEQ(n_decode, i32), SEQ(max_len, i64)
#define PAGES                                                                                         \
  SEQ(cu, tensor), SEQ(context, tensor), SEQ(pages, tensor), SEQ(n_prefill, i32), SEQ(n_decode, i32), \
      SEQ(max_len, i64), SEQ(max_context, i64)
#define OPERATOR(op, ...)                                                                                    \
  {                                                                                                          \
#op, [] {                                                                                                  \
     using Args = kdelta_##op##_args;                                                                         \
     return Operator{sizeof(Args),                                                                            \
                     [](kdelta_context* c, const void* a, const kdelta_launch* l) {                           \
                       return kdelta_##op(c, static_cast<const Args*>(a), l);                                 \
                     },                                                                                       \
                     [](kdelta_context* c, const void* a, size_t* bytes) {                                    \
                       return kdelta_##op##_workspace(c, static_cast<const Args*>(a), bytes);                 \
                     },                                                                                       \
                     {__VA_ARGS__}};                                                                          \
   }() \
  }

const std::unordered_map<std::string, Operator>& operators() {
  static const auto* const table = [] {
    using Seq = kdelta_sequences;
    auto* t = new std::unordered_map<std::string, Operator>{
        OPERATOR(kda, IN(q), IN(k), IN(v), IN(gate), IN(beta), IN(a_log), IN(dt_bias), I32(gate_kind), F32(lower_bound),
                 I32(beta_kind), I32(norm_kind), F32(scale), SEQUENCES, OUT(state), OUT(records), OUT(out)),
        OPERATOR(kda_replay, OUT(state), OUT(records), IN(slot), IN(accepted)),
        OPERATOR(kda_decode, IN(qkv), IN(conv_weight), IN(decay), IN(beta), IN(a_log), IN(dt_bias), I32(gate_kind),
                 F32(lower_bound), I32(beta_kind), I32(norm_kind), F32(scale), IN(gate), IN(norm_weight), F32(norm_eps),
                 SEQUENCES, OUT(state), OUT(window), OUT(out)),
        OPERATOR(short_conv, IN(x), IN(weight), I32(silu), SEQUENCES, OUT(state), OUT(out), OUT(split[0]),
                 OUT(split[1]), OUT(split[2])),
        OPERATOR(gated_norm, IN(x), IN(gate), IN(weight), IN(bias), IN(residual), OUT(sum_out), I32(silu), F32(eps),
                 IN(live), OUT(out)),
        OPERATOR(attn_res, IN(blocks), I64(n), IN(sum), IN(addend), OUT(sum_out), IN(score_weight), F32(eps),
                 IN(norm_weight), F32(norm_eps), OUT(out)),
        OPERATOR(activation, I32(kind), F32(beta), F32(linear_beta), IN(gate), IN(up), OUT(out)),
        OPERATOR(mx_quantize, I32(format), I32(rule), IN(x), OUT(codes), OUT(scale), I32(situ), F32(beta),
                 F32(linear_beta), I32(activate_left), IN(group_counts)),
        OPERATOR(mx_dequantize, I32(format), IN(codes), IN(scale), OUT(out)),
        OPERATOR(dequant_situ, IN(x), F32(beta), F32(linear_beta), I32(activate_left), IN(weight_scale),
                 IN(activation_scale), IN(bias), I32(dynamic), IN(quant_scale), IN(quant_offset), IN(group_counts),
                 OUT(y), OUT(scale))};
    {
      using Seq = kdelta_paged_sequences;
      t->insert({OPERATOR(mla_append, IN(latent), IN(rope), PAGES, OUT(cache)),
                 OPERATOR(mla, IN(q), IN(cache), IN(kv_b), IN(kv_b_scale), I32(kv_b_format), PAGES, I64(nope),
                          I64(rope), I64(value), I64(latent), F32(scale), OUT(out))});
    }
    return t;
  }();
  return *table;
}

// Throws the exception that Python has for a status.
void check(kdelta_status status) {
  PyObject* type = PyExc_RuntimeError;
  switch (status) {
    case KDELTA_OK:
      return;
    case KDELTA_INVALID_ARGUMENT:
      type = PyExc_ValueError;
      break;
    case KDELTA_UNSUPPORTED:
      type = PyExc_NotImplementedError;
      break;
    case KDELTA_OUT_OF_MEMORY:
      type = PyExc_MemoryError;
      break;
    default:
      break;
  }
  PyErr_SetString(type, kdelta_last_error());
  throw nb::python_error();
}

class Context {
 public:
  Context(const std::string& device, int device_id, int threads, bool exact, const std::string& isa,
          const std::string& force)
      : cuda_(device == "cuda"), device_id_(device_id) {
    const kdelta_context_options o{.device_type = cuda_ ? kDLCUDA : kDLCPU,
                                   .device_id = device_id,
                                   .threads = threads,
                                   .exact = exact ? 1 : 0,
                                   .isa = isa.empty() ? nullptr : isa.c_str(),
                                   .force = force.empty() ? nullptr : force.c_str()};
    check(kdelta_context_create(&o, &context_));
  }
  ~Context() { kdelta_context_destroy(context_); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void run(const std::string& op, nb::dict arguments, nb::object stream, nb::object workspace, nb::object faults) {
    const Operator& o = find(op);
    alignas(std::max_align_t) std::byte args[kMostBytes] = {};
    if (!cuda_ && !(stream.is_none() && workspace.is_none() && faults.is_none()))
      throw nb::value_error((op + ": stream, workspace and faults: given, expected None on the CPU").c_str());
    Borrowed on_cpu;
    std::optional<Borrowed> on_cuda;
    Borrowed& borrowed = cuda_ ? on_cuda.emplace(device_id_, stream) : on_cpu;
    fill(o, op, args, arguments, borrowed);
    kdelta_launch launch;
    if (cuda_) launch_on_device(o, args, launch, workspace, faults, borrowed);
    const nb::gil_scoped_release released;
    kdelta_status status = KDELTA_OK;
    // The CPU's scratch is the thread's own and is kept.
    thread_local std::vector<std::byte> scratch;
    if (!cuda_) {
      status = o.workspace(context_, args, &launch.workspace_bytes);
      if (status == KDELTA_OK) {
        if (scratch.size() < launch.workspace_bytes) scratch.resize(launch.workspace_bytes);
        launch.workspace = scratch.data();
        launch.workspace_bytes = scratch.size();
      }
    }
    if (status == KDELTA_OK) status = o.run(context_, args, &launch);
    if (status == KDELTA_OK) return;
    const nb::gil_scoped_acquire held;
    check(status);
  }

  size_t workspace(const std::string& op, nb::dict arguments) {
    const Operator& o = find(op);
    alignas(std::max_align_t) std::byte args[kMostBytes] = {};
    Borrowed borrowed;
    fill(o, op, args, arguments, borrowed);
    size_t bytes = 0;
    check(o.workspace(context_, args, &bytes));
    return bytes;
  }

 private:
  static constexpr size_t kMostBytes = 512;  // of an operator's struct

  static const Operator& find(const std::string& op) {
    const auto found = operators().find(op);
    if (found == operators().end()) throw nb::value_error(("no operator " + op).c_str());
    return found->second;
  }

  static void fill(const Operator& o, const std::string& op, std::byte* args, nb::dict& arguments, Borrowed& borrowed) {
    static_assert(sizeof(kdelta_mla_args) <= kMostBytes && sizeof(kdelta_kda_args) <= kMostBytes);
    std::memcpy(args, &o.size, sizeof(size_t));
    size_t used = 0;
    for (const Field& f : o.fields) {
      PyObject* value = PyDict_GetItemString(arguments.ptr(), f.name);
      if (value == nullptr) continue;
      ++used;
      if (value == Py_None) continue;
      std::byte* at = args + f.offset;
      const auto put = [at](auto number) { std::memcpy(at, &number, sizeof(number)); };
      switch (f.kind) {
        case Kind::tensor:
        case Kind::written:
          put(borrowed.view(value, op.c_str(), f.name, f.kind == Kind::written));
          break;
        case Kind::i32:
          put(nb::cast<int32_t>(nb::handle(value)));
          break;
        case Kind::i64:
          put(nb::cast<int64_t>(nb::handle(value)));
          break;
        case Kind::f32:
          put(nb::cast<float>(nb::handle(value)));
          break;
      }
    }
    if (used == nb::len(arguments)) return;
    for (auto [key, value] : arguments) {
      const std::string name = nb::cast<std::string>(key);
      bool known = false;
      for (const Field& f : o.fields) known = known || name == f.name;
      if (!known) throw nb::type_error((op + ": no argument " + name).c_str());
    }
  }

  std::pair<void*, size_t> own_memory(nb::handle array, const char* name, Borrowed& borrowed) const {
    const DLTensor* t = borrowed.view(array, "Context.run", name, true);
    if (t->device.device_type != kDLCUDA || t->device.device_id != device_id_)
      throw nb::value_error((std::string("Context.run: ") + name + ": not on the context's device").c_str());
    int64_t bytes = t->dtype.bits / 8;
    for (int32_t i = 0; i < t->ndim; ++i) bytes *= t->shape[i];
    return {static_cast<std::byte*>(t->data) + t->byte_offset, static_cast<size_t>(bytes)};
  }

  // Scratch: memory of the caller's, or a function of a number of bytes that gives some.
  void launch_on_device(const Operator& o, const std::byte* args, kdelta_launch& launch, nb::handle workspace,
                        nb::handle faults, Borrowed& borrowed) {
    nb::object memory = nb::borrow(workspace);
    if (PyCallable_Check(workspace.ptr())) {
      size_t needed = 0;
      check(o.workspace(context_, args, &needed));
      memory = needed == 0 ? nb::none() : nb::object(workspace(needed));
    }
    if (!memory.is_none()) {
      const auto [data, bytes] = own_memory(memory, "workspace", borrowed);
      launch.workspace = data;
      launch.workspace_bytes = bytes;
    }
    if (!faults.is_none()) {
      const auto [data, bytes] = own_memory(faults, "faults", borrowed);
      if (bytes != sizeof(uint32_t)) throw nb::value_error("Context.run: faults: expected one word of 32 bits");
      launch.faults = static_cast<uint32_t*>(data);
    }
    launch.stream = borrowed.stream();
  }

  kdelta_context* context_ = nullptr;
  bool cuda_;
  int device_id_;
};

}  // namespace

void bind_operators(nb::module_& m) {
  nb::class_<Context>(m, "Context")
      .def(nb::init<const std::string&, int, int, bool, const std::string&, const std::string&>(),
           nb::arg("device") = "cpu", nb::arg("device_id") = 0, nb::arg("threads") = 0, nb::arg("exact") = false,
           nb::arg("isa") = "", nb::arg("force") = "")
      .def("run", &Context::run, nb::arg("op"), nb::arg("arguments"), nb::arg("stream") = nb::none(),
           nb::arg("workspace") = nb::none(), nb::arg("faults") = nb::none())
      .def("workspace", &Context::workspace, nb::arg("op"), nb::arg("arguments"));
}

}  // namespace kdelta::python
