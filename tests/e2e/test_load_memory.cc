// What loading takes beside the mapped files, as the kernel enforces it: no second copy of a shard, composed or not.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kdelta/io/prefault.h"
#include "kdelta/model/load.h"
#include "tests/e2e/dummy_checkpoint.h"

namespace kdelta::test {
namespace {

namespace fs = std::filesystem;

// A Kimi-Linear of 64 MB in shards of at most 24 MB whose two products take 4 MB each.
class LoadMemory : public testing::Test {
 protected:
  LoadMemory() : directory_(fs::temp_directory_path() / ("kdelta_load_memory_" + std::to_string(getpid()))) {
    fs::create_directories(directory_);
    std::ofstream(directory_ / "config.json") << R"({"architectures": ["KimiLinearForCausalLM"], "vocab_size": 2048,
      "hidden_size": 1024, "intermediate_size": 2048, "rms_norm_eps": 1e-5, "num_hidden_layers": 3,
      "linear_attn_config": {"num_heads": 16, "head_dim": 128, "short_conv_kernel_size": 4, "kda_layers": [1, 2],
      "full_attn_layers": [3]}, "num_attention_heads": 4, "num_key_value_heads": 4, "qk_nope_head_dim": 32,
      "qk_rope_head_dim": 32, "v_head_dim": 32, "kv_lora_rank": 64, "mla_use_nope": true, "num_experts": 0,
      "first_k_dense_replace": 1, "hidden_act": "silu"})";
    written_ = write_dummy_checkpoint(directory_, int64_t{24} << 20, false);
  }
  ~LoadMemory() override { fs::remove_all(directory_); }

  // The load in a process that may take `bytes` more of private memory than it has, and what becomes of it: 0 loaded, 1
  // refused for memory. Mapped files do not count.
  int load_within(GateChoice gate, int64_t bytes) const {
    const pid_t child = fork();
    if (child == 0) _exit(load_limited(gate, bytes));
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  fs::path directory_;
  DummyCheckpoint written_;

 private:
  static int64_t private_bytes() {
    std::ifstream in("/proc/self/status");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("VmData:")) return 1024 * std::stoll(line.substr(7));
    return -1;
  }

  int load_limited(GateChoice gate, int64_t bytes) const {
    const auto most = static_cast<rlim_t>(private_bytes() + bytes);
    const rlimit limit{most, most};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) return 2;
    try {
      LoadChoices choices{.kda_gate = gate};
      choices.options.threads = 1;
      const LoadedModel m = load_model(directory_, LoadFormat::checkpoint, choices);
      prefault(m.weights.mapped(), {});
      return m.report.mapped_bytes > 0 ? 0 : 3;
    } catch (const Error& e) {
      return e.code() == ErrorCode::out_of_memory ? 1 : 4;
    } catch (const std::bad_alloc&) {
      return 1;
    }
  }
};

// Vectors in fp32, what messages and lists of tensors take, and the transposed factor with the rows of one call.
constexpr int64_t kSmall = int64_t{6} << 20;

TEST_F(LoadMemory, AFactoredGateTakesNothingThatGrowsWithAShard) {
  ASSERT_GT(written_.largest_shard, int64_t{20} << 20);
  ASSERT_GE(written_.shards, 3);
  EXPECT_EQ(load_within(GateChoice::factored, kSmall), 0);
}

TEST_F(LoadMemory, AComposedGateTakesItsProductsAndNoSecondCopyOfAShard) {
  const LoadedModel plan = load_model(directory_, LoadFormat::headers, {.kda_gate = GateChoice::composed});
  const int64_t products = plan.report.composed_bytes;
  ASSERT_EQ(products, 2 * 2048 * 1024 * 2);
  ASSERT_LT(products + kSmall, written_.largest_shard);
  EXPECT_EQ(load_within(GateChoice::composed, products + kSmall), 0);
  EXPECT_EQ(load_within(GateChoice::composed, products - 1), 1) << "the limit is one that the kernel keeps";
}

}  // namespace
}  // namespace kdelta::test
