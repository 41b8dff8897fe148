#include "bench/support/bench.h"

#include <benchmark/benchmark.h>

#include "bench/support/session.h"
#include "kdelta/core/check.h"

namespace kdelta::bench {
namespace {

std::vector<void (*)()>& registrations() {
  static std::vector<void (*)()> list;
  return list;
}

uint64_t next_random(uint64_t& s) {
  s ^= s << 13, s ^= s >> 7, s ^= s << 17;
  return s;
}

}  // namespace

Session*& session() {
  static Session* current = nullptr;
  return current;
}

Registration::Registration(void (*f)()) {
  registrations().push_back(f);
}

const Exec& exec() {
  return session()->exec();
}
const Exec& exec_with(const std::string& op, const std::string& variant) {
  return session()->exec_with(op, variant);
}
void add(Case c) {
  session()->add(std::move(c));
}

// Words 0x3c00 to 0x3f7b and their negatives: bf16 numbers, and neither byte is an FP8 NaN or infinity.
void fill(void* data, int64_t bytes) {
  auto* p = static_cast<uint16_t*>(data);
  uint64_t s = 0x9e3779b97f4a7c15u;
  for (int64_t i = 0; i < bytes / 2; ++i) {
    const uint64_t r = next_random(s);
    p[i] = static_cast<uint16_t>(((r & 1) << 15) | 0x3c00u | (r >> 8 & 0x37bu));
  }
}

void fill_scales(uint8_t* data, int64_t count) {
  uint64_t s = 88172645463325252u;
  for (int64_t i = 0; i < count; ++i) data[i] = static_cast<uint8_t>(118 + next_random(s) % 8);
}

Session::Session(int threads, IsaLevel isa) : team_(threads), arena_(Device{}, int64_t{2} << 30), roofs_(team_) {
  options_.isa = isa;
  exec_.scratch = &arena_;
  exec_.threads = &team_;
  exec_.options = &options_;
}

const Exec& Session::exec_with(const std::string& op, const std::string& variant) {
  std::unique_ptr<Forced>& slot = forced_[op + ":" + variant];
  if (slot == nullptr) {
    slot = std::make_unique<Forced>(Forced{options_, exec_});
    slot->options.force[op] = variant;
    slot->exec.options = &slot->options;
  }
  return slot->exec;
}

void Session::add(Case c) {
  const std::string name = c.op + "/" + c.variant + "/" + c.shape;
  KDELTA_CHECK(cases_.emplace(name, std::move(c)).second, "two cases are called ", name);
  benchmark::RegisterBenchmark(name.c_str(),
                               [this, name](benchmark::State& state) {
                                 const Case& here = cases_.at(name);
                                 if (made_name_ != name) {
                                   made_ = nullptr;  // the old data goes first
                                   made_ = here.make();
                                   made_name_ = name;
                                 }
                                 made_();  // touches pages and fills caches as a second call would find them
                                 state.counters["roof"] = roofs_.sample(here.roof);
                                 for (auto _ : state) made_();
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

void Session::register_cases() {
  for (auto* f : registrations()) f();
}

}  // namespace kdelta::bench
