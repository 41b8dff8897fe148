#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "kdelta/api/ops.h"
#include "kdelta/api/test_c_direct.h"
#include "tests/support/support.h"

namespace kdelta {
namespace {

using test::args_of;
using test::Argument;
using test::Call;
using test::kCalls;

class COps : public testing::Test {
 protected:
  COps() {
    const kdelta_context_options two{.threads = 2};
    EXPECT_EQ(kdelta_context_create(&two, &context), KDELTA_OK) << kdelta_last_error();
  }
  ~COps() override { kdelta_context_destroy(context); }

  // The message that the call is refused with, as an invalid argument.
  std::string refused(Call& c) {
    const kdelta_status status = c.execute(context);
    EXPECT_EQ(status, KDELTA_INVALID_ARGUMENT) << c.op << ": " << (status == KDELTA_OK ? "ok" : kdelta_last_error());
    return status == KDELTA_OK ? "ok" : kdelta_last_error();
  }

  kdelta_context* context = nullptr;
};

TEST_F(COps, EveryOperatorGivesTheBitsOfTheOpItself) {
  const test::TestExec ex(2);
  for (const auto& make : kCalls) {
    Call through = make(), direct = make();
    ASSERT_EQ(through.execute(context), KDELTA_OK) << kdelta_last_error();
    test::run_op(ex, direct);
    for (size_t i = 0; i < through.arguments.size(); ++i)
      EXPECT_EQ(through.arguments[i]->memory(), direct.arguments[i]->memory())
          << through.op << ": " << through.arguments[i]->name;
  }
}

TEST_F(COps, WhatIsWrittenChanges) {  // so that equal bits above mean something
  for (const auto& make : kCalls) {
    Call after = make(), before = make();
    ASSERT_EQ(after.execute(context), KDELTA_OK) << kdelta_last_error();
    for (size_t i = 0; i < after.arguments.size(); ++i) {
      const Argument& a = *after.arguments[i];
      if (a.name == "records" && std::string(after.op) == "kda_replay") continue;  // which only reads them
      EXPECT_EQ(a.memory() != before.arguments[i]->memory(), a.written) << after.op << ": " << a.name;
    }
  }
}

TEST_F(COps, EverySpoiledTensorIsRefusedByName) {
  const std::pair<const char*, void (*)(Argument&)> spoilers[] = {
      {"null", [](Argument& a) { *a.field = nullptr; }},
      {"null data", [](Argument& a) { a.view.data = nullptr; }},
      {"null shape", [](Argument& a) { a.view.shape = nullptr; }},
      {"unknown dtype",
       [](Argument& a) {
         a.view.dtype = {77, 32, 1};
       }},
      {"two lanes", [](Argument& a) { a.view.dtype.lanes = 2; }},
      {"odd bits", [](Argument& a) { a.view.dtype.bits = 24; }},
      {"double precision",
       [](Argument& a) {
         a.view.dtype = {kDLFloat, 64, 1};
       }},
      {"nine axes", [](Argument& a) { a.view.ndim = 9; }},
      {"minus one axes", [](Argument& a) { a.view.ndim = -1; }},
      {"one axis less", [](Argument& a) { a.view.ndim -= 1; }},
      {"a negative size", [](Argument& a) { a.shape.back() = -1; }},
      {"a size beyond memory", [](Argument& a) { a.shape.back() = int64_t{1} << 60; }},
      {"one element less", [](Argument& a) { a.shape.back() -= 1; }},
      {"another device",
       [](Argument& a) {
         a.view.device = {kDLCUDA, 0};
       }},
      {"a device of no kind",
       [](Argument& a) {
         const int32_t none = 99;
         std::memcpy(&a.view.device, &none, sizeof(none));
       }},
  };
  for (const auto& make : kCalls)
    for (size_t i = 0; i < make().arguments.size(); ++i)
      for (const auto& [what, spoil] : spoilers) {
        Call c = make();
        Argument& a = *c.arguments[i];
        if (a.optional && std::string(what) == "null") continue;
        const std::string shrunk = what;
        // Fewer of these are another call, not a wrong one.
        const bool fp4 = std::string(c.op) == "mx_quantize" && a.name == "x";
        if (shrunk == "one element less" && (a.name == "group_counts" || a.name == "pages" || a.name == "slot" || fp4))
          continue;
        spoil(a);
        const std::string message = refused(c);
        EXPECT_TRUE(message.starts_with(std::string(c.op) + ": ")) << message;
        EXPECT_TRUE(c.guards_intact());
        // A size that is wrong may be blamed on the argument that it disagrees with.
        if (shrunk != "one element less" && shrunk != "one axis less") {
          EXPECT_NE(message.find(a.name.substr(0, a.name.find('['))), std::string::npos)
              << a.name << ", " << what << ": " << message;
        }
      }
}

TEST_F(COps, StridesThatCannotBeAreRefused) {
  for (const auto& make : kCalls)
    for (size_t i = 0; i < make().arguments.size(); ++i) {
      Call c = make();
      Argument& a = *c.arguments[i];
      std::vector<int64_t> dense(a.shape.size(), 1);
      for (size_t j = a.shape.size() - 1; j-- > 0;) dense[j] = dense[j + 1] * a.shape[j + 1];
      for (const int64_t bad : {int64_t{-1}, int64_t{1} << 61}) {
        size_t axis = 0;
        while (axis + 1 < a.shape.size() && a.shape[axis] < 2) ++axis;
        if (a.shape[axis] < 2) continue;  // no axis is stepped along
        a.strides = dense;
        a.strides[axis] = bad;
        a.view.strides = a.strides.data();
        EXPECT_NE(refused(c).find("stride"), std::string::npos) << kdelta_last_error();
      }
      if (!a.written) continue;
      a.strides = dense;
      a.strides[0] = 0;  // every row at one place
      a.view.strides = a.strides.data();
      EXPECT_NE(refused(c).find("one address"), std::string::npos) << kdelta_last_error();
    }
}

TEST_F(COps, AnAddressBetweenElementsIsRefused) {
  for (const auto& make : kCalls)
    for (size_t i = 0; i < make().arguments.size(); ++i) {
      Call c = make();
      Argument& a = *c.arguments[i];
      if (a.view.dtype.bits == 8) continue;
      a.view.byte_offset = 1;
      EXPECT_NE(refused(c).find("multiple"), std::string::npos) << kdelta_last_error();
    }
}

TEST_F(COps, AByteOffsetMovesTheView) {
  Call c = test::calls::activation(), moved = test::calls::activation();
  Argument& a = moved.at("gate");
  a.view.data = static_cast<char*>(a.view.data) - 64;
  a.view.byte_offset = 64;
  ASSERT_EQ(c.execute(context), KDELTA_OK);
  ASSERT_EQ(moved.execute(context), KDELTA_OK) << kdelta_last_error();
  EXPECT_EQ(c.at("out").memory(), moved.at("out").memory());
}

TEST_F(COps, AnOutputThatIsAnInputIsRefusedUnlessTheOperatorMayWorkInPlace) {
  Call conv = test::calls::short_conv();
  *conv.at("out").field = *conv.at("x").field;
  EXPECT_EQ(refused(conv), "short_conv: out: overlaps x, expected memory of its own");
  Call delta = test::calls::kda();
  delta.at("out").view = delta.at("v").view;
  EXPECT_EQ(refused(delta), "kda: out: overlaps v, expected memory of its own");
  Call mixture = test::calls::attn_res();
  mixture.at("out").view.data = mixture.at("blocks").as<bf16>() + 6 * 64;
  EXPECT_EQ(refused(mixture), "attn_res: out: overlaps blocks, expected memory of its own");

  Call norm = test::calls::gated_norm(), apart = test::calls::gated_norm();
  ASSERT_EQ(apart.execute(context), KDELTA_OK);
  norm.at("out").view = norm.at("x").view;
  ASSERT_EQ(norm.execute(context), KDELTA_OK) << kdelta_last_error();
  EXPECT_EQ(norm.at("x").memory(), apart.at("out").memory());
}

TEST_F(COps, ColumnsOfOnePackedBufferDoNotOverlap) {
  Call packed = test::calls::activation(), apart = test::calls::activation();
  Argument& gate = packed.at("gate");  // [6, 70] in rows of 140
  gate.strides = {141, 1};
  ASSERT_EQ(gate.allocate(), true);
  std::memcpy(gate.view.data, apart.at("gate").view.data, 1);
  for (int64_t t = 0; t < 6; ++t)
    std::memcpy(gate.as<bf16>() + t * 141, apart.at("gate").as<bf16>() + t * 140, 70 * sizeof(bf16));
  packed.at("out").strides = {141, 1};
  packed.at("out").view = gate.view;
  packed.at("out").view.data = gate.as<bf16>() + 70;
  // The last row of the output ends behind the input's memory.
  packed.at("out").shape[0] = packed.at("gate").shape[0] = packed.at("up").shape[0] = 5;
  packed.at("out").view.shape = packed.at("out").shape.data();
  ASSERT_EQ(packed.execute(context), KDELTA_OK) << kdelta_last_error();
  ASSERT_EQ(apart.execute(context), KDELTA_OK);
  for (int64_t t = 0; t < 5; ++t)
    EXPECT_EQ(std::memcmp(gate.as<bf16>() + t * 141 + 70, apart.at("out").as<bf16>() + t * 70, 70 * sizeof(bf16)), 0);
  packed.at("out").view.data = gate.as<bf16>() + 69;
  EXPECT_EQ(refused(packed), "activation: out: overlaps gate, expected memory of its own");
}

TEST_F(COps, ASmallWorkspaceIsRefusedWithTheSizeThatIsNeeded) {
  Call c = test::calls::kda();
  size_t bytes = 0;
  ASSERT_EQ(c.workspace(context, &bytes), KDELTA_OK);
  ASSERT_GT(bytes, 64u);
  std::vector<char> scratch(bytes + 1);
  kdelta_launch launch{.workspace = scratch.data(), .workspace_bytes = 64};
  EXPECT_EQ(c.run(context, &launch), KDELTA_INVALID_ARGUMENT);
  EXPECT_EQ(kdelta_last_error(),
            "kda: workspace: 64 bytes, expected at least " + std::to_string(bytes) + " (kdelta_kda_workspace)");
  launch = {.workspace_bytes = bytes};
  EXPECT_EQ(c.run(context, &launch), KDELTA_INVALID_ARGUMENT);
  launch = {.workspace = scratch.data() + 1, .workspace_bytes = bytes};  // any address will do
  EXPECT_EQ(c.run(context, &launch), KDELTA_OK) << kdelta_last_error();
}

TEST_F(COps, TheWorkspaceQueryNeedsNoMemory) {
  for (const auto& make : kCalls) {
    Call c = make(), bare = make();
    for (auto& a : bare.arguments) a->view.data = nullptr;
    size_t with = 1, without = 2;
    ASSERT_EQ(c.workspace(context, &with), KDELTA_OK) << kdelta_last_error();
    ASSERT_EQ(bare.workspace(context, &without), KDELTA_OK) << kdelta_last_error();
    EXPECT_EQ(with, without) << c.op;
  }
}

TEST_F(COps, NullArgumentsAndForeignStructSizesAreRefused) {
  Call c = test::calls::kda();
  kdelta_launch launch;
  EXPECT_EQ(kdelta_kda(nullptr, nullptr, nullptr), KDELTA_INVALID_ARGUMENT);
  EXPECT_EQ(kdelta_kda(context, nullptr, &launch), KDELTA_INVALID_ARGUMENT);
  EXPECT_EQ(c.workspace(context, nullptr), KDELTA_INVALID_ARGUMENT);
  EXPECT_EQ(kdelta_context_create(nullptr, nullptr), KDELTA_INVALID_ARGUMENT);
  kdelta_context_destroy(nullptr);
  for (const size_t size : {size_t{0}, size_t{8}, *c.struct_size - 1, size_t{1} << 40}) {
    *c.struct_size = size;
    EXPECT_EQ(c.run(context, &launch), KDELTA_INVALID_ARGUMENT) << size;
  }
  launch.struct_size = 3;
  *c.struct_size = sizeof(kdelta_kda_args);
  EXPECT_EQ(c.run(context, &launch), KDELTA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(kdelta_last_error()).find("struct_size 3"), std::string::npos) << kdelta_last_error();
}

TEST_F(COps, ALongerStructOfALaterVersionIsTakenWhileItsNewFieldsAreZero) {
  struct {
    kdelta_activation_args args;
    uint64_t later = 0;
  } longer;
  Call c = test::calls::activation();
  longer.args = args_of<kdelta_activation_args>(c);
  longer.args.struct_size = sizeof(longer);
  EXPECT_EQ(kdelta_activation(context, &longer.args, nullptr), KDELTA_OK) << kdelta_last_error();
  longer.later = 1;
  EXPECT_EQ(kdelta_activation(context, &longer.args, nullptr), KDELTA_UNSUPPORTED);
}

TEST_F(COps, NumbersOutOfRangeAreRefused) {
  for (const auto& make : kCalls)
    for (size_t i = 0; i < make().numbers.size(); ++i)
      for (const int64_t bad : {int64_t{-7}, int64_t{INT32_MAX}}) {
        Call c = make();
        const std::string name = c.numbers[i].first;
        // These are bounds from above, or fine when large.
        if (bad > 0 &&
            (name == "max_len" || name == "max_context" || name == "beta" || name == "eps" || name == "linear_beta"))
          continue;
        c.numbers[i].second(bad);
        refused(c);
        EXPECT_TRUE(c.guards_intact());
      }
}

// A bound says what cannot be: one that nothing reaches may not cost what it allows.
TEST_F(COps, BoundsFarBeyondRowsAndPagesChangeNothing) {
  for (const auto& make : kCalls) {
    Call near = make(), far = make();
    size_t bounds = 0, bytes = 0;
    for (auto& [name, set] : far.numbers)
      if (std::string(name).starts_with("max_")) set(INT64_MAX), ++bounds;
    if (bounds == 0) continue;
    ASSERT_EQ(near.execute(context), KDELTA_OK) << kdelta_last_error();
    ASSERT_EQ(far.execute(context), KDELTA_OK) << kdelta_last_error();
    for (const auto& a : near.arguments) EXPECT_EQ(far.at(a->name).memory(), a->memory()) << near.op << ": " << a->name;
    ASSERT_EQ(far.workspace(context, &bytes), KDELTA_OK);
    EXPECT_LT(bytes, size_t{1} << 24) << far.op;
  }
}

TEST_F(COps, ManyRowsOfNoElementAreRefused) {
  Call c = test::calls::activation();
  for (auto& a : c.arguments) {
    a->shape = {int64_t{1} << 40, 0};
    a->strides.clear();
    a->allocate();
  }
  EXPECT_NE(refused(c).find("rows of no element"), std::string::npos) << kdelta_last_error();
  for (auto& a : c.arguments) a->shape[0] = 1000;
  EXPECT_EQ(c.execute(context), KDELTA_OK) << kdelta_last_error();
}

TEST_F(COps, AContextOfImpossibleOptionsIsRefusedByName) {
  const std::pair<kdelta_context_options, const char*> wrong[] = {{{.device_type = 7}, "device_type"},
                                                                  {{.device_id = 1}, "device_id"},
                                                                  {{.device_type = kDLCUDA, .device_id = 99}, "device"},
                                                                  {{.threads = -1}, "threads"},
                                                                  {{.threads = 100000}, "threads"},
                                                                  {{.isa = "sse9"}, "sse9"},
                                                                  {{.force = "kda:none"}, "none"}};
  for (const auto& [options, name] : wrong) {
    kdelta_context* made = context;
    EXPECT_EQ(kdelta_context_create(&options, &made), KDELTA_INVALID_ARGUMENT) << name;
    EXPECT_EQ(made, nullptr);
    EXPECT_NE(std::string(kdelta_last_error()).find(name), std::string::npos) << kdelta_last_error();
  }
}

TEST_F(COps, RowsOfNobodyAreZerosOfADecodeStepWhateverTheirInputsHold) {
  Call c = test::calls::kda_decode();
  Argument& gate = c.at("gate");
  for (int64_t i = gate.elements() / 2; i < gate.elements(); ++i) gate.as<bf16>()[i] = to_bf16(NAN);
  ASSERT_EQ(c.execute(context), KDELTA_OK) << kdelta_last_error();
  Argument& out = c.at("out");
  for (int64_t i = 0; i < out.elements(); ++i) EXPECT_EQ(out.as<bf16>()[i].bits == 0, i >= out.elements() / 2) << i;
}

// Both pools are looked at first: nothing of a step is written when one of them lacks a slot.
TEST_F(COps, ADecodeStepThatIsRefusedHasWrittenNothing) {
  Call c = test::calls::kda_decode();
  c.at("state").shape[0] = 2;
  const std::vector<unsigned char> before = c.at("window").memory();
  EXPECT_NE(refused(c).find("kda_decode: "), std::string::npos);
  EXPECT_EQ(c.at("window").memory(), before);
}

// Where a row of kda_decode is forced it is that op's own, which the references make up.
TEST_F(COps, AForcedRowOfADecodeStepIsObeyed) {
  Call parts = test::calls::kda_decode(), whole = test::calls::kda_decode();
  kdelta_context *reference = nullptr, *three = nullptr;
  const kdelta_context_options one{.threads = 1, .force = "kda_decode:reference"},
      each{.threads = 1, .force = "short_conv:reference,kda:reference,gated_norm:reference"};
  ASSERT_EQ(kdelta_context_create(&one, &reference), KDELTA_OK) << kdelta_last_error();
  ASSERT_EQ(kdelta_context_create(&each, &three), KDELTA_OK) << kdelta_last_error();
  ASSERT_EQ(whole.execute(reference), KDELTA_OK) << kdelta_last_error();
  ASSERT_EQ(parts.execute(three), KDELTA_OK) << kdelta_last_error();
  size_t bytes = 0, nothing = 1;
  ASSERT_EQ(parts.workspace(three, &bytes), KDELTA_OK);
  ASSERT_EQ(whole.workspace(reference, &nothing), KDELTA_OK);
  EXPECT_GT(bytes, 0u);
  EXPECT_EQ(nothing, 0u);  // the reference takes no scratch, so it ran
  kdelta_context_destroy(reference);
  kdelta_context_destroy(three);
  for (const char* name : {"state", "window", "out"})
    EXPECT_EQ(parts.at(name).memory(), whole.at(name).memory()) << name;
}

TEST_F(COps, AForcedVariantIsUsed) {
  Call best = test::calls::kda(), plain = test::calls::kda();
  kdelta_context* reference = nullptr;
  const kdelta_context_options options{.threads = 1, .force = "kda:reference"};
  ASSERT_EQ(kdelta_context_create(&options, &reference), KDELTA_OK) << kdelta_last_error();
  ASSERT_EQ(best.execute(context), KDELTA_OK);
  ASSERT_EQ(plain.execute(reference), KDELTA_OK);
  kdelta_context_destroy(reference);
  EXPECT_NE(best.at("state").memory(), plain.at("state").memory());
}

TEST_F(COps, ThreadsThatShareAContextWaitForOneAnother) {
  Call alone = test::calls::kda();
  ASSERT_EQ(alone.execute(context), KDELTA_OK);
  std::vector<std::thread> threads;
  std::vector<Call> many;
  for (int i = 0; i < 4; ++i) many.push_back(test::calls::kda());
  for (Call& c : many)
    threads.emplace_back([this, &c] { EXPECT_EQ(c.execute(context), KDELTA_OK) << kdelta_last_error(); });
  for (std::thread& t : threads) t.join();
  for (Call& c : many) EXPECT_EQ(c.at("out").memory(), alone.at("out").memory());
}

TEST_F(COps, MessagesBelongToTheirThread) {
  Call c = test::calls::kda();
  *c.at("q").field = nullptr;
  refused(c);
  std::thread([] { EXPECT_STREQ(kdelta_last_error(), ""); }).join();
  EXPECT_STREQ(kdelta_last_error(), "kda: q: missing (null)");
}

// Not under the sanitizers: that of threads ends a forked process which starts one.
TEST_F(COps, TheChildOfAForkIsRefusedAndMayMakeAContextOfItsOwn) {
  const pid_t child = fork();
  if (child == 0) {
    Call c = test::calls::kda();
    bool good = c.execute(context) == KDELTA_INVALID_ARGUMENT &&
                std::string(kdelta_last_error()).find("fork()") != std::string::npos;
    kdelta_context* own = nullptr;
    const kdelta_context_options two{.threads = 2};
    good = good && kdelta_context_create(&two, &own) == KDELTA_OK && c.execute(own) == KDELTA_OK;
    kdelta_context_destroy(own);
    _exit(good ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(COps, StatusesAndVersionsHaveNames) {
  EXPECT_STREQ(kdelta_status_name(KDELTA_OK), "ok");
  EXPECT_STREQ(kdelta_status_name(KDELTA_INTERNAL), "internal");
  EXPECT_STREQ(kdelta_status_name(99), "unknown");
  EXPECT_EQ(kdelta_abi_version(), static_cast<uint32_t>(KDELTA_ABI_VERSION));
  EXPECT_EQ(std::string(kdelta_version()).find(KDELTA_VERSION), 0u);
}

TEST(Ops, TheThrowingFormsGiveTheSameBitsAndThrowTheMessage) {
  ops::Context context({.threads = 1});
  std::vector<float> gate(6), up(6), out(6), in_place(6);
  for (size_t i = 0; i < 6; ++i) gate[i] = in_place[i] = static_cast<float>(i) - 2.5f, up[i] = 0.5f;
  const ops::Tensor g(gate.data(), {2, 3}), u(up.data(), {2, 3}), o(out.data(), {2, 3}), i(in_place.data(), {2, 3}),
      bad(out.data(), {3, 2});
  ops::activation(context, {.gate = g, .up = u, .out = o});
  ops::activation(context, {.gate = i, .up = u, .out = i});
  EXPECT_EQ(out, in_place);
  EXPECT_NE(out, gate);
  try {
    ops::activation(context, {.gate = g, .up = u, .out = bad});
    FAIL();
  } catch (const ops::Error& e) {
    EXPECT_STREQ(e.what(), "activation: out: shape [3, 2], expected [2, 3]");
    EXPECT_EQ(e.status(), KDELTA_INVALID_ARGUMENT);
  }
  EXPECT_THROW(ops::Tensor(out.data(), {2, 3}, {1}), ops::Error);
}

}  // namespace
}  // namespace kdelta
