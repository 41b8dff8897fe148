// Any call of any operator through the C interface: it ends with a known status, a failure has words in UTF-8, nothing
// is written outside the outputs, and inputs stay as they were. Memory is true to its description; everything else may
// be wrong.
#include "kdelta/api/test_c_calls.h"
#include "kdelta/core/check.h"
#include "kdelta/io/fuzz_input.h"
#include "kdelta/io/json.h"

namespace {

using namespace kdelta;
using test::Argument;
using test::Call;

kdelta_context* context() {
  static kdelta_context* const made = [] {
    kdelta_context* c = nullptr;
    const kdelta_context_options one{.threads = 1};
    KDELTA_CHECK(kdelta_context_create(&one, &c) == KDELTA_OK, kdelta_last_error());
    return c;
  }();
  return made;
}

int64_t size_near(fuzz::Input& in, int64_t given) {
  const int64_t size = std::clamp(given, int64_t{-2}, int64_t{1} << 60);  // one more and twice as much are sizes too
  const int64_t choices[] = {size - 1,         size + 1,         0,        1, 2, 3, size * 2, 33, -1,
                             int64_t{1} << 31, int64_t{1} << 47, INT64_MAX};
  return in.of(choices);
}

// Small numbers: boundaries, slots, pages, counts that are often right.
void fill_integers(fuzz::Input& in, Argument& a) {
  const auto width = static_cast<size_t>(a.view.dtype.bits / 8);
  int64_t sum = 0;
  for (int64_t i = 0; i < std::min<int64_t>(a.elements(), 64); ++i) {
    const auto value = static_cast<int64_t>(in.pick(8)) - 1;
    sum += value;
    const int64_t put = a.name == "cu" ? sum : value;
    std::memcpy(a.as<char>() + static_cast<size_t>(i) * width, &put, width);
  }
}

void reallocate(fuzz::Input& in, Argument& a) {
  a.view.byte_offset = 0;
  if (!a.allocate()) return;
  const bool integers = a.view.dtype.code == kDLInt && a.strides.empty();
  if (integers && (a.view.dtype.bits == 32 || a.view.dtype.bits == 64)) return fill_integers(in, a);
  std::memset(a.view.data, 0x3e, static_cast<size_t>(a.span(int64_t{1} << 20)));
}

void spoil(fuzz::Input& in, Call& c) {
  Argument& a = *c.arguments[in.pick(c.arguments.size())];
  switch (in.pick(10)) {
    case 0:
      *a.field = nullptr;
      break;
    case 1:
      if (a.shape.empty()) break;
      a.shape[in.pick(a.shape.size())] = size_near(in, a.shape.back());
      reallocate(in, a);
      break;
    case 2:
      a.strides.assign(a.shape.size(), 1);
      for (int64_t& s : a.strides) s = size_near(in, a.shape.empty() ? 1 : a.shape.back());
      reallocate(in, a);
      break;
    case 3: {
      constexpr DLDataType types[] = {test::kF32,      test::kBf16, test::kI32,        test::kI64,
                                      test::kI8,       test::kU8,   {kDLFloat, 64, 1}, {kDLFloat, 16, 1},
                                      {kDLBool, 8, 1}, {17, 4, 2},  {99, 255, 7}};
      a.view.dtype = in.of(types);
      reallocate(in, a);
      break;
    }
    case 4:
      in.pick(2) == 0 ? a.shape.push_back(size_near(in, 2)) : a.shape.resize(a.shape.size() / 2);
      a.strides.clear();
      reallocate(in, a);
      break;
    case 5:
      if (a.view.data == nullptr) break;
      // What is written stays in place, what is read may begin within the guard.
      if (a.written) a.view.data = a.as<char>() + a.view.byte_offset;
      a.view.byte_offset = in.pick(3);
      if (a.written) a.view.data = a.as<char>() - a.view.byte_offset;
      break;
    case 6:
      a.view.device = {in.pick(2) == 0 ? kDLCUDA : kDLCUDAHost, static_cast<int32_t>(in.byte())};
      break;
    case 7:
      if (a.view.dtype.code == kDLInt && a.view.data != nullptr && a.strides.empty()) fill_integers(in, a);
      break;
    case 8: {  // another argument's memory, where that is large enough
      const Argument& b = *c.arguments[in.pick(c.arguments.size())];
      const int64_t need = a.span(int64_t{1} << 20), have = b.span(int64_t{1} << 20);
      if (b.view.data != nullptr && need >= 0 && need <= have) a.view.data = b.view.data;
      break;
    }
    default:
      if (c.numbers.empty()) break;
      c.numbers[in.pick(c.numbers.size())].second(size_near(in, static_cast<int64_t>(in.byte())));
  }
}

bool lies_in(const std::vector<unsigned char>& memory, const DLTensor& view) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(view.data) + view.byte_offset;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory.data());
  return at >= begin && at < begin + memory.size();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  Call c = in.of(test::kCalls)();
  if (in.pick(16) == 0) *c.struct_size = in.byte();
  for (size_t times = in.pick(5); times > 0; --times) spoil(in, c);
  std::vector<std::vector<unsigned char>> before;
  for (const auto& a : c.arguments) before.push_back(a->memory());

  const kdelta_status status = c.execute(context());
  KDELTA_CHECK(status >= KDELTA_OK && status < KDELTA_INTERNAL, c.op, ": ", kdelta_last_error());
  if (status != KDELTA_OK) KDELTA_CHECK(is_utf8(kdelta_last_error()) && kdelta_last_error()[0] != 0, c.op);
  KDELTA_CHECK(c.guards_intact(), c.op);
  for (size_t i = 0; i < c.arguments.size(); ++i) {
    const Argument& a = *c.arguments[i];
    bool lent = a.written;  // or its memory is an output's
    for (const auto& b : c.arguments) lent = lent || (b->written && lies_in(a.memory(), b->view));
    const bool same = a.memory() == before[i];
    KDELTA_CHECK(same || (lent && status == KDELTA_OK), c.op, ": ", a.name, " changed");
  }
  return 0;
}
