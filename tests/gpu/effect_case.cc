#include "tests/gpu/effect_case.h"

#include "kdelta/core/check.h"
#include "kdelta/core/fault.h"

namespace kdelta::test {

CudaExec::CudaExec(int64_t scratch_bytes)
    : stream_(kCuda),
      side_stream_(kCuda),
      scratch_(kCuda, scratch_bytes),
      side_scratch_(kCuda, scratch_bytes),
      forked_(kCuda),
      joined_(kCuda),
      faults_(kCuda, 4) {
  aux_ = {.stream = &side_stream_, .scratch = &side_scratch_, .forked = &forked_, .joined = &joined_};
  exec_.device = kCuda;
  exec_.stream = &stream_;
  exec_.aux = &aux_;
  exec_.scratch = &scratch_;
  exec_.options = &options_;
  exec_.faults = static_cast<uint32_t*>(faults_.data());
  fill_async(stream_, faults_.data(), 0, 4);
  stream_.synchronize();
}

uint32_t CudaExec::take_faults() {
  uint32_t bits = 0;
  copy_async(stream_, &bits, faults_.data(), 4);
  fill_async(stream_, faults_.data(), 0, 4);
  stream_.synchronize();
  return bits;
}

const Target& EffectCase::device_target() {
  static const Target target = [] {
    const DeviceProperties& p = device_properties(kCuda);
    return Target{.device = DeviceKind::cuda, .cuda = p.level, .multiprocessors = p.multiprocessors};
  }();
  return target;
}

void* EffectCase::device_address(const void* array) const {
  for (const auto& a : arrays_)
    if (a->key() == array) return a->device();
  KDELTA_UNREACHABLE("array of the case", 0);
}

void EffectCase::prepare(uint64_t seed, const Exec& reference_exec, Stream& stream) {
  Rng rng(seed);
  for (const auto& a : arrays_) a->poison();
  fill(rng);
  for (const auto& a : arrays_) a->save_before();
  (reference ? reference : call)(reference_exec, At(nullptr));
  for (const auto& a : arrays_) {
    a->save_want();
    a->upload(stream);
  }
}

void EffectCase::upload(Stream& stream) {
  for (const auto& a : arrays_) {
    a->save_before();
    a->upload(stream);
  }
  stream.synchronize();
}

void EffectCase::download(Stream& stream) {
  for (const auto& a : arrays_) a->download(stream);
  stream.synchronize();
}

void EffectCase::compare(CudaExec& device, const char* when) {
  EXPECT_EQ(fault_names(device.take_faults()), fault_names(faults)) << when;
  for (const auto& a : arrays_) a->download(device.stream());
  device.stream().synchronize();
  for (const auto& a : arrays_) EXPECT_EQ(a->difference(), "") << when;
}

bool EffectCase::run_row(const std::string& op, const std::string& variant) {
  static CudaExec device;
  static TestExec host;
  device.force(op, variant);
  host.force(op, "reference");
  prepare(1, host, device.stream());
  const At at(this);
  try {
    call(device, at);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::unsupported && std::string_view(e.what()).find("refuses") != std::string_view::npos) {
      refused = e.what();
      return false;
    }
    throw;
  }
  compare(device, "run eagerly");
  const Graph graph = Graph::capture(device, [&] { call(device, at); });
  for (uint64_t replay = 1; replay <= 3; ++replay) {
    prepare(1 + replay, host, device.stream());
    graph.launch(device.stream());
    compare(device, str("replay ", replay).c_str());
    if (testing::Test::HasFailure()) break;
  }
  return true;
}

}  // namespace kdelta::test
