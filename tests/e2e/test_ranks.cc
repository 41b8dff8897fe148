// One model on several ranks, each with its part of the weights and of the state: what they compute together is what
// one rank computes alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "kdelta/api/state_file.h"
#include "kdelta/core/communicator.h"
#include "kdelta/core/error.h"
#include "kdelta/model/reload.h"
#include "tests/e2e/generated.h"
#include "tests/e2e/support.h"
#include "tests/support/op_test.h"

namespace kdelta::test {
namespace {

constexpr int64_t kVocabulary = Generated::kVocabulary;

std::vector<int32_t> ids_of(int64_t n) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>((i * 37 + 11) % kVocabulary));
  return ids;
}

runtime::EngineConfig rank_config(DType activation, Communicator* comm) {
  runtime::EngineConfig c = engine_config(activation);
  c.options.threads = 1;
  c.max_length = c.token_budget = 128;
  c.comm = comm;
  return c;
}

// What a rank, or one alone, says to a prompt.
struct Said {
  std::vector<float> prefill, decode;  // logits
  std::vector<int32_t> tokens;
};

Said listen(const Model& model, const runtime::EngineConfig& config) {
  Said s;
  s.prefill = run_logits(model, config, ids_of(70)).logits;
  s.tokens = run_greedy(model, config, ids_of(9), 5, &s.decode);
  return s;
}

double worst(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= most)) most = std::isnan(d) ? INFINITY : d;
  }
  return most;
}

class Folder {
 public:
  Folder() : path_(testing::TempDir() + "kdelta_ranks_XXXXXX") { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

LoadedModel load_rank(const std::string& path, const Shard& shard, GateChoice gate = GateChoice::factored) {
  LoadChoices choices{.kda_gate = gate, .shard = shard};
  choices.options.threads = 1;
  return load_model(path, LoadFormat::checkpoint, choices);
}

struct Family {
  bool k3;
  int64_t heads;
};

class Ranks : public testing::TestWithParam<Family> {};

INSTANTIATE_TEST_SUITE_P(Models, Ranks,
                         testing::Values(Family{false, 12}, Family{false, 32}, Family{false, 96}, Family{true, 12},
                                         Family{true, 32}, Family{true, 96}),
                         [](const auto& kd) {
                           return std::string(kd.param.k3 ? "k3_" : "linear_") + std::to_string(kd.param.heads);
                         });

// Every layout with every number of ranks that divides the heads; experts dealt whole or by width, in turn.
TEST_P(Ranks, TogetherGiveTheLogitsOfOneInFp32) {
  int turn = 0;
  for (const bool mixed : {false, true}) {
    const Folder folder;
    write_checkpoint({.k3 = GetParam().k3, .heads = GetParam().heads, .mixed = mixed}, folder.path());
    for (const GateChoice gate : {GateChoice::factored, GateChoice::composed}) {
      const LoadedModel whole = load_rank(folder.path(), {}, gate);
      const Said want = listen(*whole.model, rank_config(DType::f32, nullptr));
      for (const int ranks : {1, 2, 3, 4, 6, 8, 16}) {
        if (GetParam().heads % ranks != 0) continue;
        const ExpertSplit split = turn++ % 2 == 0 ? ExpertSplit::experts : ExpertSplit::width;
        std::vector<Said> said(static_cast<size_t>(ranks));
        run_ranks(ranks, [&](Communicator& comm) {
          const LoadedModel part = load_rank(folder.path(), {comm.rank(), ranks, split}, gate);
          said[static_cast<size_t>(comm.rank())] = listen(*part.model, rank_config(DType::f32, &comm));
        });
        const std::string what = str(mixed ? "mixed" : "uniform", gate == GateChoice::composed ? ", composed" : "",
                                     ", ", ranks, " ranks by ", split == ExpertSplit::width ? "width" : "experts");
        EXPECT_LE(worst(said[0].prefill, want.prefill), 1e-4) << what;
        EXPECT_LE(worst(said[0].decode, want.decode), 1e-4) << what;
        for (const Said& s : said) {
          EXPECT_EQ(s.tokens, want.tokens) << what;
          EXPECT_TRUE(same_bits(s.prefill, said[0].prefill) && same_bits(s.decode, said[0].decode)) << what;
        }
      }
    }
  }
}

// One step's ops.
class Steps final : public OpObserver {
 public:
  void on_op(std::string_view op, std::string_view, const Cost&) override {
    if (op == fail_at) fail(ErrorCode::failed, "a cosmic ray hit ", op);
    if (op.starts_with("all_")) collectives.emplace_back(op);
  }
  std::vector<std::string> collectives;
  std::string fail_at;
};

std::vector<std::vector<char>> pools_of(runtime::Engine& engine) {
  std::vector<std::vector<char>> all;
  for (const auto& layer : engine.pool().views())
    for (const AnyView& pool : layer) {
      const auto* bytes = static_cast<const char*>(pool.data);
      all.emplace_back(bytes, bytes + pool.shape.numel() * dtype_bytes(pool.dtype));
    }
  return all;
}

class TwoRanks : public testing::TestWithParam<bool> {
 protected:
  TwoRanks() { write_checkpoint({.k3 = GetParam(), .heads = 12}, folder_.path()); }
  LoadedModel load(Communicator& comm, ExpertSplit split = ExpertSplit::experts) const {
    return load_rank(folder_.path(), {comm.rank(), comm.ranks(), split});
  }
  static runtime::RequestOptions greedy(int64_t tokens) {
    runtime::RequestOptions o;
    o.sampling.temperature = 0;
    o.max_tokens = tokens;
    return o;
  }
  Folder folder_;
};

INSTANTIATE_TEST_SUITE_P(Models, TwoRanks, testing::Bool(),
                         [](const auto& kd) { return std::string(kd.param ? "k3" : "linear"); });

// Row "idle DP dummy runs": a rank without tokens runs the shape of those that have some.
TEST_P(TwoRanks, AnIdleRankMeetsEveryCollectiveAndKeepsItsState) {
  const runtime::Bucket bucket{4, 1};
  std::vector<Steps> steps[2];
  std::mutex mutex;
  run_ranks(2, [&](Communicator& comm) {
    const LoadedModel m = load(comm);
    runtime::EngineConfig config = rank_config(DType::bf16, &comm);
    config.max_sequences = 4;
    config.buckets = {bucket};
    runtime::Engine engine(*m.model, config);
    const auto id = engine.submit(ids_of(20), greedy(20));
    std::vector<Steps> mine(6);
    for (size_t i = 0; i < mine.size(); ++i) {
      engine.observe(&mine[i], nullptr);
      const bool together = i < 2, alone = i == 2 || i == 3;  // then nobody has work
      if (i == 2 && comm.rank() == 1) engine.finish(id, runtime::FinishReason::cancelled);
      if (i == 4) engine.finish(id, runtime::FinishReason::cancelled);
      const auto before = pools_of(engine);
      if (together || (alone && comm.rank() == 0)) {
        EXPECT_TRUE(engine.step([](const runtime::TokenEvent& e) { EXPECT_EQ(e.error, nullptr) << *e.error; }));
      } else {
        engine.idle(bucket);
        EXPECT_EQ(pools_of(engine), before);
      }
    }
    engine.observe(nullptr, nullptr);
    EXPECT_EQ(error_of([&] {
                engine.idle({3, 1});
              }),
              "bucket: 3 rows of 1 tokens, expected one of the configuration's");
    const std::lock_guard lock(mutex);
    steps[comm.rank()] = std::move(mine);
  });
  // One for the embedding, one of each mixer and feed-forward sublayer (K3's experts: two), one for the logits.
  const size_t count = GetParam() ? 1 + 8 + 3 + 1 : 1 + 8 + 1;
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(steps[0][i].collectives.size(), count) << "step " << i;
    EXPECT_EQ(steps[0][i].collectives, steps[1][i].collectives) << "step " << i;
  }
}

TEST_P(TwoRanks, AFaultOfOneRankEndsTheRequestsOfAllWithItsReason) {
  for (const char* op : {"kda", "mla", "router", "sample"}) {
    std::string errors[2];
    run_ranks(2, [&](Communicator& comm) {
      const LoadedModel m = load(comm);
      runtime::Engine engine(*m.model, rank_config(DType::bf16, &comm));
      engine.submit(ids_of(20), greedy(5));
      Steps steps;
      engine.observe(&steps, nullptr);
      for (int i = 0; i < 4; ++i) {
        if (i == 1 && comm.rank() == 1) steps.fail_at = op;
        engine.step([&](const runtime::TokenEvent& e) {
          if (e.error != nullptr) errors[comm.rank()] = *e.error;
        });
      }
    });
    EXPECT_EQ(errors[1], std::string("a cosmic ray hit ") + op);
    EXPECT_THAT(errors[0], testing::EndsWith(std::string(": rank 1 of 2 failed: a cosmic ray hit ") + op)) << op;
  }
}

// The sums of ranks are rounded where one rank rounds, so bf16 is no worse for them.
TEST_P(TwoRanks, InBf16AreAsFarFromFp32AsOneRank) {
  const LoadedModel whole = load_rank(folder_.path(), {});
  const std::vector<float> oracle = listen(*whole.model, rank_config(DType::f32, nullptr)).prefill,
                           one = listen(*whole.model, rank_config(DType::bf16, nullptr)).prefill;
  const auto rms = [&](const std::vector<float>& x) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += std::pow(static_cast<double>(x[i] - oracle[i]), 2);
    return std::sqrt(sum / static_cast<double>(x.size()));
  };
  for (const ExpertSplit split : {ExpertSplit::experts, ExpertSplit::width})
    for (const int ranks : {2, 6}) {
      std::vector<float> got;
      run_ranks(ranks, [&](Communicator& comm) {
        const LoadedModel m = load(comm, split);
        const Said said = listen(*m.model, rank_config(DType::bf16, &comm));
        if (comm.rank() == 0) got = said.prefill;
      });
      EXPECT_LE(rms(got), 1.15 * rms(one)) << ranks;
      EXPECT_GT(rms(got), 0);
    }
}

// A draft model is whole on every rank and meets nobody; drafts of all ranks are the same.
TEST_P(TwoRanks, DraftsChangeNoToken) {
  std::vector<int32_t> want[2];
  int64_t accepted[2] = {};
  for (const int64_t drafts : {0, 3})
    run_ranks(2, [&](Communicator& comm) {
      const LoadedModel m = load(comm), whole = load_rank(folder_.path(), {});
      runtime::EngineConfig config = rank_config(DType::bf16, &comm);
      config.drafts = drafts;
      std::unique_ptr<runtime::Drafter> drafter;
      if (drafts > 0)
        drafter = runtime::make_model_drafter(*whole.model, {.max_length = 128, .drafts = drafts}, kVocabulary);
      runtime::Engine engine(*m.model, config, std::move(drafter));
      engine.submit(ids_of(20), greedy(12));
      std::vector<int32_t> tokens;
      while (engine.step([&](const runtime::TokenEvent& e) {
        EXPECT_EQ(e.error, nullptr) << *e.error;
        tokens.push_back(e.token);
      })) {
      }
      if (drafts == 0) want[comm.rank()] = tokens;
      EXPECT_EQ(tokens, want[comm.rank()]);
      accepted[comm.rank()] = engine.stats().accepted_drafts;
    });
  EXPECT_EQ(want[0], want[1]);
  EXPECT_EQ(accepted[0], accepted[1]);
  EXPECT_GT(accepted[0], 4);
}

// Capacity follows the shard: heads are dealt, latents are not.
TEST_P(TwoRanks, ASlotOfARankIsItsShareAndAPageIsWhole) {
  const runtime::EngineConfig config = rank_config(DType::bf16, nullptr);
  const auto plan = [&](const Shard& shard) {
    return runtime::plan_memory(*load_rank(folder_.path(), shard).model, config);
  };
  const runtime::MemoryPlan whole = plan({});
  for (const int ranks : {2, 3, 12}) {
    const runtime::MemoryPlan part = plan({1, ranks});
    EXPECT_EQ(part.sequence_bytes * ranks, whole.sequence_bytes);
    EXPECT_EQ(part.page_bytes, whole.page_bytes);
  }
}

// Row 10 of the merge order, unequal TP: what two ranks began goes on in one, and what one began in three.
TEST_P(TwoRanks, AStateGoesOnInAnotherNumberOfRanks) {
  const LoadedModel whole = load_rank(folder_.path(), {});
  const auto config = [](Communicator* comm, const LoadedModel& m) {
    runtime::EngineConfig c = rank_config(DType::f32, comm);
    c.model_id = m.identity;
    return c;
  };
  EXPECT_NE(whole.identity, 0u);
  const auto tokens_of = [](runtime::Engine& engine, int steps) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < steps; ++i)
      engine.step([&](const runtime::TokenEvent& e) {
        EXPECT_EQ(e.error, nullptr) << *e.error;
        tokens.push_back(e.token);
      });
    return tokens;
  };
  std::vector<int32_t> want;
  runtime::StateImage of_one;
  {
    runtime::Engine engine(*whole.model, config(nullptr, whole));
    const auto id = engine.submit(ids_of(75), greedy(12));
    want = tokens_of(engine, 6);
    of_one = engine.export_state(id);
    for (const int32_t t : tokens_of(engine, 6)) want.push_back(t);
    ASSERT_EQ(want.size(), 12u);
  }
  const std::vector<int32_t> rest(want.begin() + 6, want.end());

  std::vector<runtime::StateImage> of_two(2);
  run_ranks(2, [&](Communicator& comm) {
    const LoadedModel m = load(comm);
    runtime::Engine engine(*m.model, config(&comm, m));
    const auto id = engine.submit(ids_of(75), greedy(12));
    tokens_of(engine, 6);
    of_two[static_cast<size_t>(comm.rank())] = decode_state(
        encode_state(runtime::with_layout(engine.export_state(id), runtime::WindowLayout::channel_major)), "memory");
  });
  EXPECT_EQ(of_two[1].shard, 1);
  EXPECT_EQ(of_two[1].shards, 2);
  {
    runtime::Engine engine(*whole.model, config(nullptr, whole));
    engine.import_state(runtime::join_state(of_two));
    EXPECT_EQ(tokens_of(engine, 6), rest);
    EXPECT_EQ(error_of([&] { engine.import_state(of_two[1]); }), "state: shard 1 of 2, expected the whole");
  }
  const std::vector<runtime::StateImage> of_three = runtime::split_state(of_one, 3);
  run_ranks(3, [&](Communicator& comm) {
    const LoadedModel m = load(comm);
    runtime::Engine engine(*m.model, config(&comm, m));
    const auto rank = static_cast<size_t>(comm.rank());
    EXPECT_EQ(error_of([&] { engine.import_state(of_three[(rank + 1) % 3]); }),
              str("state: shard ", (rank + 1) % 3, " of 3, expected shard ", rank, " of 3"));
    EXPECT_EQ(error_of([&] { engine.import_state(of_one); }), str("state: the whole, expected shard ", rank, " of 3"));
    engine.import_state(of_three[rank]);
    EXPECT_EQ(tokens_of(engine, 6), rest);
  });
}

// The tensors of a checkpoint with the elements of every bf16 matrix in reverse order.
std::map<std::string, NewTensor> other_tensors(const std::string& path) {
  const Checkpoint c = Checkpoint::open(path);
  std::map<std::string, NewTensor> all;
  for (const TensorInfo& t : c.tensors()) {
    const auto bytes = std::make_shared<std::vector<uint8_t>>(c.data(t), c.data(t) + t.bytes);
    if (t.dtype == DType::bf16 && t.shape.size() == 2) {
      auto* values = reinterpret_cast<uint16_t*>(bytes->data());
      std::reverse(values, values + bytes->size() / 2);
    }
    all[t.name] = {t.name, t.dtype, t.shape, {bytes, bytes->data()}};
  }
  return all;
}

void write_tensors(const std::map<std::string, NewTensor>& tensors, const std::string& config,
                   const std::string& path) {
  std::filesystem::create_directories(path);
  std::vector<TensorToWrite> list;
  for (const auto& [name, t] : tensors) list.push_back({name, t.dtype, t.shape, t.data.get()});
  write_safetensors(path + "/model.safetensors", list);
  std::filesystem::copy_file(config + "/config.json", path + "/config.json");
}

// Ranks that hold whole experts, and their parts of all: new weights are those that a fresh start would load.
TEST_P(TwoRanks, NewWeightsAnswerAsIfLoadedWithThem) {
  for (const bool mixed : {false, true}) {
    const ExpertSplit split = mixed ? ExpertSplit::experts : ExpertSplit::width;
    const Folder folder;
    const std::string old_path = folder.path() + "/old", new_path = folder.path() + "/new";
    std::filesystem::create_directory(old_path);
    write_checkpoint({.k3 = GetParam(), .heads = 12, .mixed = mixed}, old_path);
    const auto tensors = other_tensors(old_path);
    write_tensors(tensors, old_path, new_path);
    std::vector<NewTensor> list;
    for (const auto& [name, t] : tensors) list.push_back(t);
    const uint64_t identity = load_rank(new_path, {}).identity;
    std::vector<uint64_t> replaced(2);
    run_ranks(2, [&](Communicator& comm) {
      const Shard shard{comm.rank(), 2, split};
      const runtime::EngineConfig config = rank_config(DType::f32, &comm);
      const LoadedModel fresh = load_rank(new_path, shard);
      const Said want = listen(*fresh.model, config);
      LoadedModel from_directory = load_rank(old_path, shard), from_tensors = load_rank(old_path, shard);
      EXPECT_NE(listen(*from_directory.model, config).prefill, want.prefill);
      EXPECT_EQ(reload_weights(from_directory, read_config(new_path), new_path, &comm), identity);
      replaced[static_cast<size_t>(comm.rank())] = replace_weights(from_tensors, from_tensors.identity, list, &comm);
      for (const LoadedModel* m : {&from_directory, &from_tensors}) {
        const Said got = listen(*m->model, config);
        EXPECT_TRUE(same_bits(got.prefill, want.prefill) && same_bits(got.decode, want.decode)) << mixed;
      }
    });
    EXPECT_EQ(replaced[0], replaced[1]);
  }
}

// A byte that one rank alone reads is wrong: none takes any of it, and they go on together.
TEST_P(TwoRanks, NewWeightsThatOneRankRefusesAreTakenByNone) {
  const Folder folder;
  const std::string old_path = folder.path() + "/old", new_path = folder.path() + "/new";
  std::filesystem::create_directory(old_path);
  write_checkpoint({.k3 = GetParam(), .heads = 12, .mixed = true}, old_path);
  auto tensors = other_tensors(old_path);
  std::string broken;
  for (const auto& [name, t] : tensors)
    if (name.ends_with("q_proj.weight_scale")) broken = name;
  ASSERT_FALSE(broken.empty());
  const NewTensor& t = tensors.at(broken);
  // In the last row, which is of rank 1.
  const_cast<uint8_t*>(static_cast<const uint8_t*>(t.data.get()))[t.shape[0] * t.shape[1] - 1] = 255;
  write_tensors(tensors, old_path, new_path);
  std::vector<NewTensor> list;
  for (const auto& [name, tensor] : tensors) list.push_back(tensor);
  std::string errors[2][2];
  run_ranks(2, [&](Communicator& comm) {
    LoadedModel m = load_rank(old_path, {comm.rank(), 2});
    const runtime::EngineConfig config = rank_config(DType::f32, &comm);
    const Said before = listen(*m.model, config);
    errors[comm.rank()][0] = error_of([&] { reload_weights(m, read_config(new_path), new_path, &comm); });
    errors[comm.rank()][1] = error_of([&] { replace_weights(m, m.identity, list, &comm); });
    const Said after = listen(*m.model, config);
    EXPECT_TRUE(same_bits(after.prefill, before.prefill) && same_bits(after.decode, before.decode));
  });
  for (const int way : {0, 1}) {
    EXPECT_THAT(errors[1][way], testing::HasSubstr("tensor " + broken + ": scale byte 255"));
    EXPECT_EQ(errors[0][way], "reload: rank 1 of 2: " + errors[1][way]);
  }
}

TEST_P(TwoRanks, TheCommunicatorMustBeTheShards) {
  const LoadedModel part = load_rank(folder_.path(), {1, 2});
  PlannedRanks other(0, 2);
  for (Communicator* comm : {static_cast<Communicator*>(nullptr), static_cast<Communicator*>(&other)}) {
    runtime::Engine engine(*part.model, rank_config(DType::bf16, comm));
    engine.submit(ids_of(3), greedy(1));
    std::string error;
    engine.step([&](const runtime::TokenEvent& e) { error = e.error != nullptr ? *e.error : ""; });
    EXPECT_EQ(error, str("comm: ", comm == nullptr ? "none" : "rank 0 of 2",
                         ", expected rank 1 of 2, what the model was made for"));
  }
}

}  // namespace
}  // namespace kdelta::test
