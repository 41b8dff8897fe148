// A call of kda with all its memory on the device.
#pragma once

#include "kdelta/core/fault.h"
#include "kdelta/core/graph.h"
#include "kdelta/ops/kda/test_problem.h"
#include "tests/gpu/effect_case.h"

namespace kdelta::test {

// A problem's arrays on the device, guards and all.
template <class In, class S>
class Uploaded {
 public:
  Uploaded(Problem<In, S>& p, Stream& stream) : p_(p), stream_(stream), args_(p.args()) {
    args_.q.data = put(p.q), args_.k.data = put(p.k), args_.v.data = put(p.v), args_.gate.data = put(p.gate);
    args_.beta.data = put(p.beta), args_.a_log.data = put(p.a_log), args_.dt_bias.data = put(p.dt_bias);
    args_.seq.cu.data = put(p.cu), args_.seq.slot.data = put(p.slot), args_.seq.accepted.data = put(p.accepted);
    args_.seq.fresh.data = put(p.fresh);
    if (p.snapshot) args_.seq.snapshot.data = put(*p.snapshot);
    if (p.records) args_.records.data = put(*p.records);
    args_.state.data = put(p.state), args_.out.data = put(p.out);
  }
  const KdaArgs& args() const { return args_; }
  // Contents of the inputs and the state again, at the same addresses.
  void refresh() {
    size_t i = 0;
    auto again = [&](auto& g) { copy_async(stream_, buffers_[i++].data(), g.storage(), bytes(g)); };
    again(p_.q), again(p_.k), again(p_.v), again(p_.gate), again(p_.beta), again(p_.a_log), again(p_.dt_bias);
    again(p_.cu), again(p_.slot), again(p_.accepted), again(p_.fresh);
    if (p_.snapshot) again(*p_.snapshot);
    if (p_.records) again(*p_.records);
    again(p_.state), again(p_.out);
  }
  void fetch() {
    copy_async(stream_, p_.out.storage(), buffers_.back().data(), bytes(p_.out));
    copy_async(stream_, p_.state.storage(), buffers_[buffers_.size() - 2].data(), bytes(p_.state));
    if (p_.records)
      copy_async(stream_, p_.records->storage(), buffers_[buffers_.size() - 3].data(), bytes(*p_.records));
    stream_.synchronize();
    EXPECT_TRUE(!p_.records || p_.records->guards_intact());
    EXPECT_TRUE(p_.out.guards_intact());
    EXPECT_TRUE(p_.state.guards_intact());
  }

 private:
  template <class T>
  static int64_t bytes(const Guarded<T>& g) {
    return g.storage_size() * static_cast<int64_t>(sizeof(T));
  }
  template <class T>
  T* put(Guarded<T>& g) {
    buffers_.emplace_back(kCuda, bytes(g));
    copy_async(stream_, buffers_.back().data(), g.storage(), bytes(g));
    return static_cast<T*>(buffers_.back().data()) + Guarded<T>::kGuard;
  }
  Problem<In, S>& p_;
  Stream& stream_;
  std::vector<Buffer> buffers_;
  KdaArgs args_;
};

inline bool is_portable(const std::string& variant) {
  return variant == "cuda_portable";
}

}  // namespace kdelta::test
