#include "kdelta/ops/mla/paged.h"

#include <cstdio>

#include "kdelta/core/check.h"

namespace kdelta {
namespace {

[[noreturn]] void refuse(const char* op, const std::string& what) {
  fail(ErrorCode::invalid_argument, op, ": ", what);
}

void check_row(const PagedSequences& s, int64_t n, int64_t page_count, int64_t page_tokens, const char* op) {
  const int64_t len = s.cu.data[n + 1] - s.cu.data[n], context = s.context.data[n];
  if (len == 0) return;
  if (context < 0) refuse(op, str("context[", n, "] is ", context, ", expected >= 0"));
  if (len > s.max_len) refuse(op, str("sequence ", n, " has ", len, " tokens, max_len is ", s.max_len));
  if (context + len > s.max_context)
    refuse(op, str("sequence ", n, " reaches ", context + len, " tokens, max_context is ", s.max_context));
  const int64_t needed = (context + len + page_tokens - 1) / page_tokens;
  if (needed > s.pages.dim(1))
    refuse(op, str("sequence ", n, " needs ", needed, " pages, its row of pages holds ", s.pages.dim(1)));
  for (int64_t p = 0; p < needed; ++p) {
    const int32_t page = *s.pages.at(n, p);
    if (page < 1 || page >= page_count)
      refuse(op, str("pages[", n, ", ", p, "] is ", page, ", expected 1..", page_count - 1));
  }
}

}  // namespace

void expect_paged(const PagedSequences& s, const char* op) {
  // Every step comes by here: no allocation for names that are hardly ever read.
  const auto expect = [op](const View<const int32_t>& v, const Shape& want, const char* argument) {
    char name[48];
    std::snprintf(name, sizeof(name), "%s: %s", op, argument);
    expect_view(v, want, name);
  };
  if (s.pages.shape.rank != 2) refuse(op, str("pages: shape ", to_string(s.pages.shape), ", expected [N, P]"));
  const int64_t N = s.pages.dim(0);
  expect(s.cu, {N + 1}, "cu");
  expect(s.context, {N}, "context");
  expect(s.pages, {N, s.pages.dim(1)}, "pages");
  if (s.n_prefill < 0 || s.n_decode < 0 || int64_t{s.n_prefill} + s.n_decode > N)
    refuse(op, str(s.n_prefill, " prefill and ", s.n_decode, " decode sequences of ", N));
  if (s.max_len < 0 || s.max_context < 0) refuse(op, str("max_len ", s.max_len, ", max_context ", s.max_context));
}

void validate_paged(const PagedSequences& s, int64_t tokens, int64_t page_count, int64_t page_tokens, const char* op) {
  const int32_t* cu = s.cu.data;
  const int64_t N = s.pages.dim(0), live = s.n_prefill + s.n_decode;
  if (cu[0] != 0) refuse(op, str("cu[0] is ", cu[0], ", expected 0"));
  for (int64_t n = 0; n < N; ++n)
    if (cu[n + 1] < cu[n])
      refuse(op, str("cu[", n + 1, "] is ", cu[n + 1], " after ", cu[n], ", expected no decrease"));
  if (cu[N] > tokens) refuse(op, str("cu ends at ", cu[N], ", past the ", tokens, " rows"));
  if (cu[live] != cu[N]) refuse(op, str("rows from ", live, " on hold tokens but are neither prefill nor decode"));
  for (int64_t n = 0; n < live; ++n) check_row(s, n, page_count, page_tokens, op);
}

}  // namespace kdelta
