// The kernels of torch.ops.kdelta for the CPU and CUDA, by PyTorch's stable C interface of 2.10: one binary for that
// version and later ones, with no header or class of theirs. Schemas and fake implementations are registered by
// kdelta/torch.py. An operator is a row: its arguments in the order of its schema, and the tensor that its result is
// like.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontends/python/torch_abi.h"
#include "kdelta/api/c.h"

namespace {

void expect(AOTITorchError failed, const char* what) {
  if (failed)
    throw std::runtime_error(std::string("kdelta: ") + what + " is refused by PyTorch, expected a dense tensor");
}

// The thread's last refusal, from which kdelta/torch.py makes the exception that Python has for it. PyTorch itself
// hands standard exceptions on as ValueError, MemoryError and RuntimeError up to 2.14, and as RuntimeError alone later.
struct Refusal {
  kdelta_status status = KDELTA_OK;
  std::string message;
};
thread_local Refusal refusal;

class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::string what) : what_(std::move(what)) {}
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  std::string what_;
};
[[noreturn]] void refuse(kdelta_status status, const std::string& message) {
  refusal = {status, message};
  if (status == KDELTA_INVALID_ARGUMENT) throw std::invalid_argument(message);
  if (status == KDELTA_OUT_OF_MEMORY) throw OutOfMemory(message);
  throw std::runtime_error(message);
}
void check(kdelta_status status) {
  if (status != KDELTA_OK) refuse(status, kdelta_last_error());
}

// A key that PyTorch dispatches by: what the tensors of a call must lie on.
enum class Key { cpu, cuda };
constexpr int32_t kMostDevices = 64;

enum class Kind { tensor, maybe, i32, i64, f32, flag, unflag, choice };
struct Field {
  const char* name;
  Kind kind;
  size_t offset;
  std::array<const char*, 4> names;  // of a choice, by number
};
struct Operator {
  const char* name;
  size_t size;
  kdelta_status (*run)(kdelta_context*, const void*, const kdelta_launch*);
  kdelta_status (*workspace)(kdelta_context*, const void*, size_t*);
  std::vector<Field> fields;
  const char *shape_of, *dtype_of;  // arguments that the result is like; null: none, `out` is an argument or absent
  size_t out;

  size_t place(const char* argument) const {  // compared by address first: literals of one file are mostly one
    for (size_t i = 0; i < fields.size(); ++i)
      if (fields[i].name == argument || std::strcmp(fields[i].name, argument) == 0) return i;
    std::abort();
  }
};

constexpr size_t kMostTensors = 24, kMostBytes = 512;

// A function of PyTorch that not every one of them has; its library is loaded already.
template <class F>
F* find(const char* library, const char* name) {
  void* const loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return loaded == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(loaded, name));
}

// What a call's scratch depends on: all but data. A step like the last one, as most are, need not ask for its size.
struct Description {
  std::array<int64_t, 320> words;
  size_t count = 0;
  bool whole = true;  // false: too long to be remembered

  void add(int64_t word) {
    if (count < words.size())
      words[count++] = word;
    else
      whole = false;
  }
  bool operator==(const Description& other) const {
    return whole && other.whole && count == other.count &&
           std::memcmp(words.data(), other.words.data(), count * sizeof(int64_t)) == 0;
  }
};
struct Known {
  Description description;
  size_t bytes = 0;
};

// What a call took from PyTorch's stack, given back at its end.
class Call {
 public:
  explicit Call(Key key) : key_(key) {}
  ~Call() {
    for (size_t i = 0; i < count_; ++i) aoti_torch_delete_tensor_object(handles_[i]);
  }
  AtenTensorHandle own(AtenTensorHandle handle) { return handles_[count_++] = handle; }
  DLTensor* view(AtenTensorHandle handle, const char* name) {
    DLTensor& v = views_[viewed_++];
    int64_t rank = 0;
    int32_t dtype = 0;
    expect(aoti_torch_get_data_ptr(handle, &v.data), name);
    expect(aoti_torch_get_dim(handle, &rank), name);
    expect(aoti_torch_get_sizes(handle, &v.shape), name);
    expect(aoti_torch_get_strides(handle, &v.strides), name);
    expect(aoti_torch_get_dtype(handle, &dtype), name);
    v.ndim = static_cast<int32_t>(rank);
    v.dtype = dtype_of(dtype);
    v.device = key_ == Key::cpu ? DLDevice{kDLCPU, 0} : device_of(handle, name);
    v.byte_offset = 0;
    description.add(dtype);
    description.add(rank);
    for (int64_t i = 0; i < rank; ++i) {
      description.add(v.shape[i]);
      description.add(v.strides[i]);
    }
    return &v;
  }

  // kDLCPU for all that is not CUDA, which the operators refuse by that name.
  static DLDevice device_of(AtenTensorHandle handle, const char* name) {
    static const int32_t cuda = aoti_torch_device_type_cuda();
    int32_t type = 0, index = 0;
    expect(aoti_torch_get_device_type(handle, &type), name);
    if (type != cuda) return {kDLCPU, 0};
    expect(aoti_torch_get_device_index(handle, &index), name);
    return {kDLCUDA, index};
  }

  Description description;

 private:
  static DLDataType dtype_of(int32_t dtype) {
    using Known = std::array<DLDataType, 64>;
    static const Known known = [] {
      Known k;
      k.fill(kUnknown);
      const auto put = [&k](int32_t theirs, DLDataType ours) { k.at(static_cast<size_t>(theirs)) = ours; };
      put(aoti_torch_dtype_float32(), {kDLFloat, 32, 1});
      put(aoti_torch_dtype_bfloat16(), {kDLBfloat, 16, 1});
      put(aoti_torch_dtype_float16(), {kDLFloat, 16, 1});
      put(aoti_torch_dtype_float64(), {kDLFloat, 64, 1});
      put(aoti_torch_dtype_int32(), {kDLInt, 32, 1});
      put(aoti_torch_dtype_int64(), {kDLInt, 64, 1});
      put(aoti_torch_dtype_int16(), {kDLInt, 16, 1});
      put(aoti_torch_dtype_int8(), {kDLInt, 8, 1});
      put(aoti_torch_dtype_uint8(), {kDLUInt, 8, 1});
      put(aoti_torch_dtype_bool(), {kDLBool, 8, 1});
      put(aoti_torch_dtype_float8_e4m3fn(), {10, 8, 1});
      put(aoti_torch_dtype_float8_e5m2(), {12, 8, 1});
      if (auto* e8m0 = find<decltype(torch_dtype_float8_e8m0fnu)>("libtorch_cpu.so", "torch_dtype_float8_e8m0fnu"))
        put(e8m0(), {14, 8, 1});
      return k;
    }();
    return dtype >= 0 && static_cast<size_t>(dtype) < known.size() ? known[static_cast<size_t>(dtype)] : kUnknown;
  }
  static constexpr DLDataType kUnknown{99, 0, 1};  // which every operator refuses by the argument's name

  Key key_;
  std::array<AtenTensorHandle, kMostTensors> handles_;
  std::array<DLTensor, kMostTensors> views_;
  size_t count_ = 0, viewed_ = 0;
};

// One for each device and process, on the CPU with as many threads as PyTorch has when it is made. A child of fork()
// leaves its parent's alone.
kdelta_context* context(DLDevice device) {
  static std::array<std::atomic<kdelta_context*>, 1 + kMostDevices> all{};
  static const int watched = pthread_atfork(nullptr, nullptr, [] {
    for (auto& one : all) one.store(nullptr);
  });
  const bool cuda = device.device_type == kDLCUDA;
  if (cuda && (device.device_id < 0 || device.device_id >= kMostDevices))
    throw std::runtime_error("kdelta: cuda:" + std::to_string(device.device_id) + ", expected less than " +
                             std::to_string(kMostDevices));
  std::atomic<kdelta_context*>& current = all[cuda ? 1 + static_cast<size_t>(device.device_id) : 0];
  kdelta_context* made = current.load();
  if (made != nullptr) return made;
  uint32_t threads = 1;
  expect(torch_get_num_threads(&threads) != 0 || watched != 0, "its number of threads");
  const kdelta_context_options options{.device_type = device.device_type,
                                       .device_id = device.device_id,
                                       .threads = cuda ? 0 : static_cast<int32_t>(threads)};
  kdelta_context* fresh = nullptr;
  check(kdelta_context_create(&options, &fresh));
  if (current.compare_exchange_strong(made, fresh)) return fresh;
  kdelta_context_destroy(fresh);  // another thread was first
  return made;
}

// The queue that PyTorch's own operators of this thread use.
void* current_stream(int32_t device) {
  static auto* const get =
      find<decltype(aoti_torch_get_current_cuda_stream)>("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream");
  if (get == nullptr) throw std::runtime_error("kdelta: this PyTorch has no CUDA streams (libtorch_cuda.so)");
  void* stream = nullptr;
  expect(get(device, &stream), "its current stream");
  return stream;
}

template <class T>
T value_of(StableIValue raw) {
  T value;
  std::memcpy(&value, &raw, sizeof(T));
  return value;
}
template <class T>
StableIValue raw_of(T value) {
  StableIValue raw = 0;
  std::memcpy(&raw, &value, sizeof(T));
  return raw;
}

int32_t choice_of(const Operator& op, const Field& field, StringHandle text) {
  size_t length = 0;
  const char* data = nullptr;
  torch_string_length(text, &length);
  torch_string_c_str(text, &data);
  int32_t number = -1;
  for (size_t i = 0; i < field.names.size() && field.names[i] != nullptr; ++i)
    if (std::string_view(data, length) == field.names[i]) number = static_cast<int32_t>(i);
  const std::string given(number < 0 ? std::string(data, length) : std::string());
  torch_delete_string(text);
  if (number >= 0) return number;
  std::string accepted;
  for (size_t i = 0; i < field.names.size() && field.names[i] != nullptr; ++i)
    accepted += (i == 0 ? "" : ", ") + std::string(field.names[i]);
  refuse(KDELTA_INVALID_ARGUMENT,
         std::string(op.name) + ": " + field.name + ": '" + given + "', expected one of " + accepted);
}

// Takes everything off the stack first, so that nothing is lost when an argument is refused.
struct Taken {
  std::array<StableIValue, 40> values;
  std::array<AtenTensorHandle, 40> tensors{};
};
void take(const Operator& op, const StableIValue* stack, Call& call, Taken& taken) {
  for (size_t i = 0; i < op.fields.size(); ++i) {
    taken.values[i] = stack[i];
    if (op.fields[i].kind == Kind::tensor) {
      taken.tensors[i] = call.own(value_of<AtenTensorHandle>(stack[i]));
    } else if (op.fields[i].kind == Kind::maybe) {
      const std::unique_ptr<StableIValue> inner(value_of<StableIValue*>(stack[i]));
      if (inner) taken.tensors[i] = call.own(value_of<AtenTensorHandle>(*inner));
    }
  }
}

void fill(const Operator& op, const Taken& taken, Call& call, std::byte* args) {
  std::memcpy(args, &op.size, sizeof(size_t));
  for (size_t i = 0; i < op.fields.size(); ++i) {
    const Field& f = op.fields[i];
    const StableIValue raw = taken.values[i];
    const auto put = [to = args + f.offset](auto value) { std::memcpy(to, &value, sizeof(value)); };
    switch (f.kind) {
      case Kind::tensor:
      case Kind::maybe:
        if (taken.tensors[i] != nullptr)
          put(call.view(taken.tensors[i], f.name));
        else
          call.description.add(-1);
        continue;
      case Kind::i32: {
        const auto value = value_of<int64_t>(raw);
        if (value != static_cast<int32_t>(value))
          refuse(KDELTA_INVALID_ARGUMENT,
                 std::string(op.name) + ": " + f.name + ": " + std::to_string(value) + ", expected 32 bits");
        put(static_cast<int32_t>(value));
        break;
      }
      case Kind::i64:
        put(value_of<int64_t>(raw));
        break;
      case Kind::f32:
        put(static_cast<float>(value_of<double>(raw)));
        break;
      case Kind::flag:
        put(int32_t{value_of<bool>(raw)});
        break;
      case Kind::unflag:
        put(int32_t{!value_of<bool>(raw)});
        break;
      case Kind::choice: {
        const int32_t number = choice_of(op, f, value_of<StringHandle>(raw));
        put(number);
        call.description.add(number);
        continue;
      }
    }
    call.description.add(static_cast<int64_t>(raw));
  }
}

// A new tensor.
AtenTensorHandle empty(DLDevice device, int64_t rank, const int64_t* sizes, const int64_t* strides, int32_t dtype) {
  const bool cuda = device.device_type == kDLCUDA;
  AtenTensorHandle made = nullptr;
  expect(aoti_torch_empty_strided(rank, sizes, strides, dtype,
                                  cuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu(),
                                  cuda ? device.device_id : -1, &made),
         "a new tensor");
  return made;
}

// A new dense tensor of one argument's shape and another's dtype.
AtenTensorHandle like(const Operator& op, const Taken& taken, DLDevice device) {
  const AtenTensorHandle shape = taken.tensors[op.place(op.shape_of)], dtype = taken.tensors[op.place(op.dtype_of)];
  int64_t rank = 0, *sizes = nullptr;
  int32_t type = 0;
  expect(aoti_torch_get_dim(shape, &rank), op.shape_of);
  expect(aoti_torch_get_sizes(shape, &sizes), op.shape_of);
  expect(aoti_torch_get_dtype(dtype, &type), op.dtype_of);
  std::array<int64_t, 8> strides;
  if (rank > static_cast<int64_t>(strides.size()))
    refuse(KDELTA_INVALID_ARGUMENT, std::string(op.name) + ": " + op.shape_of + ": " + std::to_string(rank) + " axes");
  int64_t below = 1;
  for (auto i = static_cast<size_t>(rank); i-- > 0;) {
    strides[i] = below;
    below *= std::max<int64_t>(sizes[i], 1);
  }
  return empty(device, rank, sizes, strides.data(), type);
}

// Where a call runs: on the CPU, or where its first CUDA tensor lies.
DLDevice place_of(Key key, const Operator& op, const Taken& taken) {
  if (key == Key::cuda)
    for (size_t i = 0; i < op.fields.size(); ++i) {
      if (taken.tensors[i] == nullptr) continue;
      const DLDevice device = Call::device_of(taken.tensors[i], op.fields[i].name);
      if (device.device_type == kDLCUDA) return device;
    }
  return {kDLCPU, 0};
}

void run(Key key, const Operator& op, Known& known, StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  if (inputs != op.fields.size() || outputs != (op.shape_of != nullptr ? 1 : 0))
    throw std::runtime_error(std::string(op.name) + ": a schema of another version than its kernel");
  Call call(key);
  Taken taken;
  take(op, stack, call, taken);
  const DLDevice device = place_of(key, op, taken);
  alignas(std::max_align_t) std::byte args[kMostBytes] = {};
  fill(op, taken, call, args);
  AtenTensorHandle result = nullptr;
  if (op.shape_of != nullptr) {
    result = call.own(like(op, taken, device));
    DLTensor* out = call.view(result, "out");
    std::memcpy(args + op.out, &out, sizeof(out));
  }
  kdelta_context* const where = context(device);
  kdelta_launch launch;
  call.description.add(reinterpret_cast<intptr_t>(where));  // which has its number of threads
  if (known.description != call.description) {
    check(op.workspace(where, args, &known.bytes));
    known.description = call.description;
  }
  if (device.device_type == kDLCPU) {
    thread_local std::vector<std::byte> scratch;  // kept
    if (scratch.size() < known.bytes) scratch.resize(known.bytes);
    launch.workspace = scratch.data();
    launch.workspace_bytes = scratch.size();
  } else {
    launch.stream = current_stream(device.device_id);
    if (known.bytes > 0) {  // PyTorch gives it to others only behind this call's work
      const auto bytes = static_cast<int64_t>(known.bytes);
      const int64_t one = 1;
      const AtenTensorHandle scratch = call.own(empty(device, 1, &bytes, &one, aoti_torch_dtype_uint8()));
      expect(aoti_torch_get_data_ptr(scratch, &launch.workspace), "scratch");
      launch.workspace_bytes = known.bytes;
    }
  }
  check(op.run(where, args, &launch));
  if (result == nullptr) return;
  AtenTensorHandle returned = nullptr;
  expect(aoti_torch_new_tensor_handle(result, &returned), "a result");
  stack[0] = raw_of(returned);
}

#define FIELD(field, kind)                        \
  Field {                                         \
#field, Kind::kind, offsetof(Args, field), {} \
  }
#define IN(field) FIELD(field, tensor)
#define MAYBE(field) FIELD(field, maybe)
#define NAMED(name, kind, field, ...)          \
  Field {                                      \
    name, Kind::kind, offsetof(Args, field), { \
      __VA_ARGS__                              \
    }                                          \
  }
#define SEQ(field, kind)                                                               \
  Field {                                                                              \
#field, Kind::kind, offsetof(Args, seq) + offsetof(decltype(Args::seq), field), {} \
  }
#define SLOTS SEQ(cu, tensor), SEQ(slot, tensor), SEQ(accepted, tensor), SEQ(fresh, tensor)
#define PAGES                                                                                                   \
  SEQ(cu, tensor), Field{"context_lengths", Kind::tensor, offsetof(Args, seq.context), {}}, SEQ(pages, tensor), \
      SEQ(n_prefill, i32), SEQ(n_decode, i32), SEQ(max_len, i64), SEQ(max_context, i64)
#define GATE                                                                             \
  NAMED("gate_kind", choice, gate_kind, "softplus", "bounded"), FIELD(lower_bound, f32), \
      NAMED("sigmoid_beta", unflag, beta_kind, ), NAMED("l2_norm", unflag, norm_kind, )
#define FORMAT(field) NAMED(#field, choice, field, "plain", "f8_e4m3", "f8_e5m2", "f4_e2m1")
#define SITU FIELD(beta, f32), FIELD(linear_beta, f32), FIELD(activate_left, flag)

// SHAPE, DTYPE: what the result is like. FIELDS in the order of the schema.
#define OPERATOR(op, SHAPE, DTYPE, OUT, ...)                                                           \
  const Operator& op() {                                                                               \
    using Args = kdelta_##op##_args;                                                                   \
    static_assert(sizeof(Args) <= kMostBytes);                                                         \
    static const Operator row{#op,                                                                     \
                              sizeof(Args),                                                            \
                              [](kdelta_context* c, const void* a, const kdelta_launch* l) {           \
                                return kdelta_##op(c, static_cast<const Args*>(a), l);                 \
                              },                                                                       \
                              [](kdelta_context* c, const void* a, size_t* bytes) {                    \
                                return kdelta_##op##_workspace(c, static_cast<const Args*>(a), bytes); \
                              },                                                                       \
                              {__VA_ARGS__},                                                           \
                              SHAPE,                                                                   \
                              DTYPE,                                                                   \
                              OUT};                                                                    \
    return row;                                                                                        \
  }
#define RESULT offsetof(Args, out)

OPERATOR(kda, "v", "v", RESULT, IN(q), IN(k), IN(v), IN(gate), IN(beta), IN(a_log), IN(dt_bias), IN(state), SLOTS,
         SEQ(n_prefill, i32), SEQ(n_decode, i32), SEQ(max_len, i64), FIELD(scale, f32), SEQ(snapshot, maybe),
         MAYBE(records), GATE)
OPERATOR(kda_replay, nullptr, nullptr, 0, IN(state), IN(records), IN(slot), IN(accepted))
OPERATOR(kda_decode, "gate", "qkv", RESULT, IN(qkv), IN(conv_weight), IN(decay), IN(beta), IN(a_log), IN(dt_bias),
         IN(gate), IN(norm_weight), IN(state), IN(window), SLOTS, SEQ(n_decode, i32), FIELD(scale, f32),
         FIELD(norm_eps, f32), GATE)
OPERATOR(short_conv, "x", "x", RESULT, IN(x), IN(weight), IN(state), SLOTS, SEQ(n_prefill, i32), SEQ(n_decode, i32),
         SEQ(max_len, i64), SEQ(snapshot, maybe), FIELD(silu, flag))
OPERATOR(gated_norm, "x", "x", RESULT, IN(x), IN(gate), MAYBE(weight), FIELD(eps, f32), FIELD(silu, flag), MAYBE(bias),
         MAYBE(residual), MAYBE(sum_out), MAYBE(live))
OPERATOR(attn_res, "sum", "sum", RESULT, MAYBE(blocks), FIELD(n, i64), IN(sum), IN(score_weight), FIELD(eps, f32),
         MAYBE(norm_weight), FIELD(norm_eps, f32), MAYBE(addend), MAYBE(sum_out))
OPERATOR(activation, "gate", "gate", RESULT, IN(gate), IN(up),
         NAMED("kind", choice, kind, "swiglu", "situ", "sigmoid_gate"), FIELD(beta, f32), FIELD(linear_beta, f32))
OPERATOR(mx_quantize, nullptr, nullptr, 0, IN(x), IN(codes), IN(scale), FORMAT(format),
         NAMED("rule", choice, rule, "floor", "rceil", "even"), FIELD(situ, flag), SITU, MAYBE(group_counts))
OPERATOR(mx_dequantize, nullptr, nullptr, 0, IN(codes), IN(scale), IN(out), FORMAT(format))
OPERATOR(dequant_situ, nullptr, nullptr, 0, IN(x), IN(y), MAYBE(weight_scale), MAYBE(activation_scale), MAYBE(bias),
         FIELD(dynamic, flag), MAYBE(quant_scale), MAYBE(quant_offset), MAYBE(group_counts), MAYBE(scale), SITU)
OPERATOR(mla_append, nullptr, nullptr, 0, IN(latent), IN(rope), IN(cache), PAGES)
OPERATOR(mla, nullptr, nullptr, 0, IN(q), IN(cache), IN(kv_b), IN(out), FIELD(nope, i64), FIELD(rope, i64),
         FIELD(value, i64), FIELD(latent, i64), FIELD(scale, f32), MAYBE(kv_b_scale), FORMAT(kv_b_format), PAGES)

#define KDELTA_OPERATORS(X) \
  X(kda)                    \
  X(kda_replay)             \
  X(kda_decode)             \
  X(short_conv)             \
  X(gated_norm) X(attn_res) X(activation) X(mx_quantize) X(mx_dequantize) X(dequant_situ) X(mla_append) X(mla)

template <const Operator& (*describe)(), Key key>
void kernel(StableIValue* stack, uint64_t inputs, uint64_t outputs) {
  thread_local Known known{{.words = {}, .count = 0, .whole = false}, 0};
  run(key, describe(), known, stack, inputs, outputs);
}

}  // namespace

// The arguments of an operator in the order of its kernel, "q,k,v,..."; null for one that has none.
extern "C" __attribute__((visibility("default"))) const char* kdelta_torch_arguments(const char* name) {
  thread_local std::string joined;
  joined.clear();
#define ROW(op)                    \
  if (std::strcmp(name, #op) == 0) \
    for (const Field& f : op().fields) joined += (joined.empty() ? "" : ",") + std::string(f.name);
  KDELTA_OPERATORS(ROW)
#undef ROW
  return joined.empty() ? nullptr : joined.c_str();
}

// What a kernel refused last on this thread; the message stays until the next one.
extern "C" __attribute__((visibility("default"))) const char* kdelta_torch_refusal(int32_t* status) {
  *status = refusal.status;
  return refusal.message.c_str();
}

namespace {

// Kernels stay registered for as long as this lives, which is until the process ends.
class Registration {
 public:
  template <Key key>
  static Registration of(const char* name) {
    Registration made(name);
#define ROW(op) made.add(#op, kernel<op, key>);
    KDELTA_OPERATORS(ROW)
#undef ROW
    return made;
  }
  Registration(Registration&& other) noexcept : library_(std::exchange(other.library_, nullptr)) {}
  ~Registration() {
    if (library_ != nullptr) aoti_torch_delete_library_object(library_);
  }

 private:
  explicit Registration(const char* key) {
    expect(aoti_torch_library_init_impl("kdelta", key, __FILE__, __LINE__, &library_), "a library of kernels");
  }
  void add(const char* name, void (*kernel)(StableIValue*, uint64_t, uint64_t)) {
    constexpr uint64_t kInterface = 0x020a000000000000;  // 2.10
    expect(torch_library_impl(library_, name, kernel, kInterface), name);
  }

  TorchLibraryHandle library_ = nullptr;
};

const Registration cpu = Registration::of<Key::cpu>("CPU");
const Registration cuda = Registration::of<Key::cuda>("CUDA");

}  // namespace
