#include <algorithm>

#include "kdelta/core/check.h"
#include "kdelta/runtime/drafter.h"

namespace kdelta::runtime {
namespace {

class LookupDrafter final : public Drafter {
 public:
  LookupDrafter(int64_t longest, int64_t shortest) : longest_(longest), shortest_(shortest) {
    KDELTA_CHECK(shortest >= 1 && longest >= shortest);
  }

  void propose(std::span<DraftQuery> queries) override {
    for (DraftQuery& q : queries) look_up(q);
  }

 private:
  // One pass from the end: how far does the text before `end` agree with the text's own end?
  void look_up(DraftQuery& q) const {
    const Request& r = *q.request;
    const int64_t known = r.known();
    int64_t best_end = 0, best_length = shortest_ - 1;
    for (int64_t end = known - 1; end >= shortest_ && best_length < longest_; --end) {
      if (r.token(end - 1) != r.token(known - 1)) continue;
      int64_t length = 1;
      while (length < longest_ && length < end && r.token(end - 1 - length) == r.token(known - 1 - length)) ++length;
      if (length > best_length) best_length = length, best_end = end;
    }
    q.tokens.clear();
    if (best_end == 0) return;
    for (int64_t i = best_end; i < known && static_cast<int64_t>(q.tokens.size()) < q.most; ++i)
      q.tokens.push_back(r.token(i));
  }

  int64_t longest_, shortest_;
};

}  // namespace

std::unique_ptr<Drafter> make_lookup_drafter(int64_t longest, int64_t shortest) {
  return std::make_unique<LookupDrafter>(longest, shortest);
}

}  // namespace kdelta::runtime
