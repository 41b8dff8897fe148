// What of a checkpoint a rank reads: its own part, and no byte of what only others need.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "kdelta/core/communicator.h"
#include "kdelta/core/error.h"
#include "tests/e2e/generated.h"
#include "tests/e2e/support.h"
#include "tests/support/op_test.h"

namespace kdelta::test {
namespace {

struct Dealt {
  int ranks;
  ExpertSplit split;
  bool k3, tied;
};

class RankBytes : public testing::TestWithParam<Dealt> {
 protected:
  RankBytes() : folder_(testing::TempDir() + "kdelta_rank_bytes_XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    write_checkpoint({.k3 = GetParam().k3, .heads = 12, .mixed = true, .tied = GetParam().tied}, folder_);
  }
  ~RankBytes() override { std::filesystem::remove_all(folder_); }

  LoadedModel load(const std::string& folder, int rank, LoadFormat format = LoadFormat::checkpoint) const {
    LoadChoices choices{.shard = {rank, GetParam().ranks, GetParam().split}};
    choices.options.threads = 1;
    return load_model(folder, format, choices);
  }

  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(Splits, RankBytes,
                         testing::Values(Dealt{2, ExpertSplit::experts, true, false},
                                         Dealt{3, ExpertSplit::width, true, false},
                                         Dealt{3, ExpertSplit::experts, false, true},
                                         Dealt{4, ExpertSplit::width, false, false}),
                         [](const auto& kd) {
                           return str(kd.param.k3 ? "k3_" : "linear_", kd.param.ranks,
                                      kd.param.split == ExpertSplit::width ? "_by_width" : "_by_experts");
                         });

// How many ranks map each byte, by tensor.
TEST_P(RankBytes, EveryByteIsMappedByOneRankOrByAll) {
  const int ranks = GetParam().ranks;
  const Checkpoint c = Checkpoint::open(folder_);
  std::map<std::string, std::vector<int>> mapped;
  for (const TensorInfo& t : c.tensors()) mapped[t.name].resize(static_cast<size_t>(t.bytes));
  for (int rank = 0; rank < ranks; ++rank) {
    const LoadedModel m = load(folder_, rank);
    // Every load maps the file anew: bytes are told apart by their place in it.
    int64_t bytes = 0;
    std::map<uintptr_t, const TensorInfo*> at;
    for (const TensorInfo& t : m.checkpoint->tensors()) at[reinterpret_cast<uintptr_t>(m.checkpoint->data(t))] = &t;
    for (const MappedRows& rows : m.weights.mapped()) {
      const auto begin = reinterpret_cast<uintptr_t>(rows.data);
      const auto it = std::prev(at.upper_bound(begin));
      for (int64_t r = 0; r < rows.rows; ++r)
        for (int64_t b = 0; b < rows.bytes; ++b)
          ++mapped[it->second->name].at(begin - it->first + static_cast<size_t>(r * rows.stride + b));
      bytes += rows.rows * rows.bytes;
    }
    EXPECT_EQ(bytes, m.report.mapped_bytes);
    EXPECT_EQ(load(folder_, rank, LoadFormat::headers).report.mapped_bytes, bytes) << "planned from headers";
  }
  int64_t once = 0, by_all = 0;
  for (const auto& [name, counts] : mapped) {
    const int first = counts.front();
    const bool whole = name.find("kv_a_proj") != std::string::npos || name.find("q_a_proj") != std::string::npos ||
                       name.find("f_a_proj") != std::string::npos || name.find("g_a_proj") != std::string::npos ||
                       name.find("block_sparse_moe.gate.weight") != std::string::npos ||
                       name.find("routed_expert_down_proj") != std::string::npos;
    const bool made = name.find("_proj") == std::string::npos && name.find(".weight") != std::string::npos &&
                      (name.find("norm") != std::string::npos || name.find("conv1d") != std::string::npos);
    const bool values = name.ends_with("A_log") || name.ends_with("dt_bias") || name.ends_with("_bias") || made ||
                        name.find("_res_") != std::string::npos;
    EXPECT_EQ(first, values ? 0 : whole ? ranks : 1) << name;
    for (const int n : counts) ASSERT_EQ(n, first) << name;
    (whole ? by_all : once) += static_cast<int64_t>(counts.size());
  }
  EXPECT_GT(once, 10 * by_all) << "nearly all of it is dealt";
}

// Everything that rank r does not hold is overwritten with bytes that nobody may read unnoticed: NaN as bf16, f32,
// E4M3 and scale. Each rank then loads its own damaged copy, and together they answer as before.
TEST_P(RankBytes, DamageOutsideItsPartIsNeverSeen) {
  const int ranks = GetParam().ranks;
  const auto answer = [&](bool damaged) {
    std::vector<float> logits;
    run_ranks(ranks, [&](Communicator& comm) {
      const LoadedModel m = load(damaged ? folder_ + "/" + std::to_string(comm.rank()) : folder_, comm.rank());
      runtime::EngineConfig config = engine_config(DType::f32);
      config.options.threads = 1;
      config.max_length = config.token_budget = 64;
      config.comm = &comm;
      const std::vector<float> mine = run_logits(*m.model, config, {5, 100, 250, 300, 479, 0, 17}).logits;
      if (comm.rank() == 0) logits = mine;
    });
    return logits;
  };
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string copy = folder_ + "/" + std::to_string(rank);
    std::filesystem::create_directory(copy);
    std::filesystem::copy_file(folder_ + "/config.json", copy + "/config.json");
    const Checkpoint c = Checkpoint::open(folder_);
    const auto whole = make_model(read_config(folder_));
    const auto part = make_model(read_config(folder_), {rank, ranks, GetParam().split});
    std::map<std::string, ShardRule> rules;  // of tensors that this rank uses, by name without ending
    for (const PlacedSpec& p : part->weights())
      for (const std::string& name : p.spec.names) rules[p.prefix + name] = p.spec.shard;
    std::map<std::string, int64_t> used;  // elements of a vector that are no padding
    for (const PlacedSpec& p : whole->weights())
      if (p.spec.kind == WeightKind::head_scalar) used[p.prefix + p.spec.names[0]] = p.spec.shape[0];
    std::vector<std::vector<uint8_t>> bytes;
    std::vector<TensorToWrite> list;
    int64_t kept = 0;
    for (const TensorInfo& t : c.tensors()) {
      bytes.emplace_back(static_cast<size_t>(t.bytes), uint8_t{0xff});
      std::string base = t.name;
      for (const char* ending : {"_packed", "_scale", ".weight"})
        if (base.ends_with(ending)) base.resize(base.size() - std::strlen(ending));
      const auto copy_range = [&](int64_t begin, int64_t n) {
        std::memcpy(bytes.back().data() + begin, c.data(t) + begin, static_cast<size_t>(n));
        kept += n;
      };
      const auto rule = rules.find(base);
      if (rule != rules.end()) {
        const int64_t rows = used.contains(base) ? used[base] : t.shape[0], row = t.bytes / t.shape[0];
        const int64_t columns = row / ranks;
        switch (rule->second) {
          case ShardRule::whole:
            copy_range(0, t.bytes);
            break;
          case ShardRule::rows:
            copy_range(rows / ranks * rank * row, rows / ranks * row);
            break;
          case ShardRule::columns:
            for (int64_t r = 0; r < rows; ++r) copy_range(r * row + columns * rank, columns);
        }
      }
      list.push_back({t.name, t.dtype, t.shape, bytes.back().data()});
    }
    EXPECT_LT(kept, c.total_bytes() * 3 / 2 / ranks) << "most of it is damaged";
    write_safetensors(copy + "/model.safetensors", list);
  }
  const std::vector<float> want = answer(false);
  for (const float x : want) ASSERT_TRUE(std::isfinite(x));
  EXPECT_TRUE(same_bits(answer(true), want));
}

TEST(RankSplits, WhatCannotBeDealtIsRefusedWithBothNumbers) {
  std::string folder = testing::TempDir() + "kdelta_rank_splits_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  write_checkpoint({.k3 = true, .heads = 12, .mixed = true}, folder);
  const ModelConfig config = read_config(folder);
  const auto refusal = [&](int ranks, ExpertSplit split, auto change) {
    ModelConfig c = config;
    change(c);
    return error_of([&] { make_model(c, {0, ranks, split})->weights(); });
  };
  constexpr auto kExperts = ExpertSplit::experts, kWidth = ExpertSplit::width;
  const auto parts = [](const char* what, int64_t total, int ranks) {
    return str(what, ": ", total, " cannot be dealt to ", ranks, " ranks in equal parts");
  };
  EXPECT_EQ(refusal(12, kExperts, [](ModelConfig&) {}), "no error");
  EXPECT_EQ(refusal(8, kExperts, [](ModelConfig&) {}), parts("linear_attn_config.num_heads", 12, 8));
  EXPECT_EQ(refusal(4, kExperts, [](ModelConfig& c) { c.mla.heads = 6; }), parts("num_attention_heads", 6, 4));
  EXPECT_EQ(refusal(4, kExperts, [](ModelConfig& c) { c.dense_width = 190; }), parts("intermediate_size", 190, 4));
  EXPECT_EQ(refusal(4, kExperts, [](ModelConfig& c) { c.moe.experts = 50; }), parts("num_experts", 50, 4));
  EXPECT_EQ(refusal(4, kWidth, [](ModelConfig& c) { c.moe.experts = 50; }), "no error");
  EXPECT_EQ(refusal(4, kWidth, [](ModelConfig& c) { c.moe.width = 90; }), parts("moe_intermediate_size", 90, 4));
  EXPECT_EQ(refusal(4, kExperts, [](ModelConfig& c) { c.moe.width = 90; }),
            parts("width of the shared experts", 90, 4));
  EXPECT_EQ(refusal(4, kExperts, [](ModelConfig& c) { c.moe.latent = 98; }), parts("routed_expert_hidden_size", 98, 4));
  EXPECT_EQ(refusal(4, kExperts, [](ModelConfig& c) { c.vocab_size = 478; }), parts("vocab_size", 478, 4));
  EXPECT_EQ(error_of([&] { make_model(config, {2, 2}); }), "shard: rank 2 of 2, expected a rank in 0..ranks-1");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kdelta::test
