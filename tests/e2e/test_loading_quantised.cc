// A quantised checkpoint that is damaged or contradicts itself is refused by the name of what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "kdelta/api/quantize.h"
#include "kdelta/io/json.h"
#include "kdelta/io/new_directory.h"
#include "tests/e2e/support.h"
#include "tests/support/op_test.h"

namespace kdelta::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kSource = "tests/golden/linear_a";
const std::string kQ = "model.layers.0.self_attn.q_proj.weight", kK = "model.layers.0.self_attn.k_proj.weight",
                  kExpert = "model.layers.1.block_sparse_moe.experts.3.w2.weight";

struct Stored {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
};
using StoredTensors = std::map<std::string, Stored>;

StoredTensors read_all(const std::string& directory) {
  const Checkpoint c = Checkpoint::open(directory);
  StoredTensors all;
  for (const TensorInfo& t : c.tensors()) all[t.name] = {t.dtype, t.shape, {c.data(t), c.data(t) + t.bytes}};
  return all;
}

// q, k and v in MXFP8, experts in MXFP4, in three shards; and a copy in one file to change.
class QuantisedLoading : public testing::Test {
 protected:
  QuantisedLoading() {
    std::string name = testing::TempDir() + "kdelta_quantised_XXXXXX";
    folder_ = mkdtemp(name.data());
    quantize({.model = kSource, .out = sharded(), .threads = 1});
    tensors_ = read_all(sharded());
    fs::create_directory(changed());
    fs::copy_file(sharded() + "/config.json", changed() + "/config.json");
  }
  ~QuantisedLoading() override { fs::remove_all(folder_); }

  std::string sharded() const { return folder_ + "/sharded"; }
  std::string changed() const { return folder_ + "/changed"; }

  static std::string load(const std::string& directory) {
    return error_of([&] { load_model(directory, LoadFormat::checkpoint); });
  }
  std::string load_with(const std::function<void(StoredTensors&)>& change) const {
    StoredTensors all = tensors_;
    change(all);
    std::vector<TensorToWrite> list;
    for (const auto& [name, t] : all) list.push_back({name, t.dtype, t.shape, t.bytes.data()});
    write_safetensors(changed() + "/model.safetensors", list);
    return load(changed());
  }
  std::string load_with_shape(const std::string& name, const std::vector<int64_t>& shape) const {
    return load_with([&](StoredTensors& all) {
      Stored& t = all.at(name);
      t.shape = shape;
      int64_t bytes = 0;
      ASSERT_TRUE(tensor_bytes(t.dtype, shape, &bytes));
      t.bytes.resize(static_cast<size_t>(bytes));
    });
  }

  std::string folder_;
  StoredTensors tensors_;
};

TEST_F(QuantisedLoading, AnUnchangedCopyLoads) {
  EXPECT_EQ(load(sharded()), "no error");
  EXPECT_EQ(load_with([](StoredTensors&) {}), "no error");
}

TEST_F(QuantisedLoading, AShardThatEndsEarlyIsRefusedByItsFile) {
  for (const auto& entry : fs::directory_iterator(sharded())) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string path = entry.path(), whole = read_text_file(path, 1 << 30);
    for (const size_t missing : {size_t{1}, size_t{100}, whole.size() / 2, whole.size() - 9, whole.size() - 1}) {
      std::ofstream(path, std::ios::binary) << whole.substr(0, whole.size() - missing);
      EXPECT_THAT(load(sharded()),
                  AllOf(HasSubstr(path), HasSubstr(missing < whole.size() - 1 ? "truncated" : "bytes")));
    }
    std::ofstream(path, std::ios::binary) << whole;
  }
  EXPECT_EQ(load(sharded()), "no error");
}

TEST_F(QuantisedLoading, AScaleOrCodesOfAnotherShapeAreRefusedWithBothShapes) {
  for (const std::string& name : {kQ, kQ + "_scale", kExpert + "_packed", kExpert + "_scale"}) {
    const std::vector<int64_t> shape = tensors_.at(name).shape;
    const auto expected = AllOf(HasSubstr("tensor " + name + ": shape ["), HasSubstr("expected " + shape_text(shape)));
    for (const std::vector<int64_t>& wrong : std::vector<std::vector<int64_t>>{
             {shape[0], shape[1] - 1}, {shape[1], shape[0]}, {shape[0], shape[1], 1}, {shape[0], 0}})
      EXPECT_THAT(load_with_shape(name, wrong), expected) << shape_text(wrong);
  }
}

TEST_F(QuantisedLoading, AScaleThatIsMissingOrOfAnotherDtypeIsRefusedByName) {
  for (const std::string& name : {kQ + "_scale", kExpert + "_scale"}) {
    EXPECT_THAT(load_with([&](StoredTensors& all) { all.erase(name); }), HasSubstr("tensor " + name + ": missing"));
    EXPECT_THAT(load_with([&](StoredTensors& all) { all.at(name).dtype = DType::i8; }),
                HasSubstr("tensor " + name + ": dtype I8, expected U8 or F8_E8M0"));
    EXPECT_EQ(load_with([&](StoredTensors& all) { all.at(name).dtype = DType::f8_e8m0; }), "no error");
    EXPECT_THAT(load_with([&](StoredTensors& all) { all.at(name).bytes[3] = 255; }),
                HasSubstr("tensor " + name + ": scale byte 255 (NaN) at offset 3"));
  }
}

// A token's row is taken out as it is, so its table is no matrix that activations are multiplied by.
TEST_F(QuantisedLoading, AnEmbeddingInAnMxFormatIsRefusedByItsTensor) {
  const std::string name = "model.embed_tokens.weight";
  const std::vector<int64_t> shape = tensors_.at(name).shape;
  const auto size = static_cast<size_t>(shape[0] * shape[1]);
  struct Case {
    const char* ending;
    DType dtype;
    int64_t values_in_byte;
    const char* format;
  };
  for (const Case& c : {Case{"", DType::f8_e4m3, 1, "MXFP8"}, Case{"", DType::f8_e5m2, 1, "MXFP8"},
                        Case{"_packed", DType::u8, 2, "MXFP4"}}) {
    const auto change = [&](StoredTensors& all) {
      all.erase(name);
      const auto codes = size / static_cast<size_t>(c.values_in_byte);
      all[name + c.ending] = {c.dtype, {shape[0], shape[1] / c.values_in_byte}, std::vector<uint8_t>(codes, 1)};
      all[name + "_scale"] = {DType::u8, {shape[0], shape[1] / 32}, std::vector<uint8_t>(size / 32, 127)};
    };
    const std::string reason =
        str("tensor ", name, c.ending, ": ", c.format, ", accepted for rows that are looked up: BF16, F32");
    EXPECT_THAT(load_with(change), HasSubstr(reason));
    EXPECT_THAT(error_of([&] { load_model(changed(), LoadFormat::headers); }), HasSubstr(reason));
  }
}

// "8-bit float" means one of the two; which, the tensors say.
TEST_F(QuantisedLoading, LayersOfOneConfigGroupInTwoTypesOfCodesAreRefusedByBoth) {
  const auto change = [&](const std::string& layer) {
    return [layer](StoredTensors& all) {
      for (auto& [name, t] : all)
        if (name.starts_with(layer) && t.dtype == DType::f8_e4m3) t.dtype = DType::f8_e5m2;
    };
  };
  const auto refused = load_with(change("model.layers.1."));
  EXPECT_THAT(refused, HasSubstr("quantization_config.config_groups.group_1: model.layers.0.self_attn.q_proj is "
                                 "F8_E4M3, model.layers.1.self_attn.q_proj is F8_E5M2"));
  EXPECT_EQ(error_of([&] { load_model(changed(), LoadFormat::headers); }), refused);
  EXPECT_EQ(load_with(change("model.layers.")), "no error") << "all of them in the other type";
}

// What other quantisers store beside codes, or a layer with a bias: leaving it out gives another model.
TEST_F(QuantisedLoading, WhatChangesAProductBesideItsWeightIsRefusedByBothTensors) {
  const std::string plain = "model.layers.0.self_attn.o_proj", packed = kExpert.substr(0, kExpert.size() - 7);
  const std::string q = kQ.substr(0, kQ.size() - 7);
  const std::array<std::string, 3> rows[] = {{plain, ".bias", ".weight"},
                                             {q, ".weight_scale_2", ".weight"},
                                             {packed, ".weight_global_scale", ".weight_packed"},
                                             {q, ".weight_zero_point", ".weight"},
                                             {packed, ".input_scale", ".weight_packed"}};
  for (const auto& [module, ending, weight] : rows) {
    const std::string refused = load_with([&](StoredTensors& all) {
      all[module + ending] = {DType::f32, {1}, std::vector<uint8_t>(4)};
    });
    EXPECT_THAT(refused, HasSubstr(str("tensor ", module, ending, ": changes what ", module, weight, " computes")));
  }
  EXPECT_EQ(load_with([&](StoredTensors& all) {
              all["elsewhere.bias"] = {DType::f32, {1}, std::vector<uint8_t>(4)};
            }),
            "no error");
}

TEST_F(QuantisedLoading, SchemesMixedInOneGroupAreRefusedByBothTensors) {
  const auto one_precision = HasSubstr("expected one precision for q, k and v of a layer");
  const Stored plain = read_all(kSource).at(kK);
  EXPECT_THAT(load_with([&](StoredTensors& all) {
                all.at(kK) = plain;
                all.erase(kK + "_scale");
              }),
              AllOf(one_precision, HasSubstr("k_proj is floating point"), HasSubstr("q_proj is MXFP8")));
  EXPECT_THAT(load_with([&](StoredTensors& all) {
                Stored packed{DType::u8, all.at(kK).shape, {}};
                packed.shape[1] /= 2;
                packed.bytes.resize(static_cast<size_t>(packed.shape[0] * packed.shape[1]));
                all.erase(kK);
                all[kK + "_packed"] = packed;
              }),
              AllOf(one_precision, HasSubstr("k_proj is MXFP4"), HasSubstr("q_proj is MXFP8")));
  const auto five = [](StoredTensors& all, const std::string& name) { all.at(name).dtype = DType::f8_e5m2; };
  EXPECT_THAT(load_with([&](StoredTensors& all) { five(all, kK); }),
              AllOf(one_precision, HasSubstr("k_proj is MXFP8 E5M2, "), HasSubstr("q_proj is MXFP8:")));
}

// All experts of a layer are one call, which takes one dtype.
TEST_F(QuantisedLoading, ExpertsOfTwoPrecisionsAreRefusedByBothTensors) {
  const auto refused = [](const char* other, const char* first) {
    return HasSubstr(str("experts.3.w2 is ", other, ", model.layers.1.block_sparse_moe.experts.0.w2 is ", first,
                         ": expected one precision for w2 of all experts of a layer"));
  };
  const StoredTensors plain = read_all(kSource);
  EXPECT_THAT(load_with([&](StoredTensors& all) {
                all.erase(kExpert + "_packed");
                all.erase(kExpert + "_scale");
                all[kExpert] = plain.at(kExpert);
              }),
              refused("BF16", "MXFP4"));
  const auto all_plain = [&](StoredTensors& all) {
    std::erase_if(all, [](const auto& t) { return t.first.find(".experts.") != std::string::npos; });
    for (const auto& [name, t] : plain)
      if (name.find(".experts.") != std::string::npos) all[name] = t;
  };
  EXPECT_EQ(load_with(all_plain), "no error");
  EXPECT_THAT(load_with([&](StoredTensors& all) {
                all_plain(all);
                Stored& t = all.at(kExpert);
                t.dtype = DType::f32;
                t.bytes.assign(2 * t.bytes.size(), 0);
              }),
              refused("F32", "BF16"));
}

TEST_F(QuantisedLoading, ExpertsThatTakeDifferentInputsAreRefusedByBothTensors) {
  ASSERT_EQ(load_with([](StoredTensors&) {}), "no error");
  Json config = parse_json_file(sharded() + "/config.json");
  Json q = *config.find("quantization_config"), groups = *q.find("config_groups"), other = *groups.find("group_0");
  other.set("targets", Json::Array{"re:.*experts\\.3\\.w2$"});
  other.set("input_activations", *groups.find("group_1")->find("input_activations"));
  groups.set("group_2", other);
  q.set("config_groups", groups);
  config.set("quantization_config", q);
  write_text_file(changed() + "/config.json", json_text(config));
  EXPECT_THAT(load(changed()),
              AllOf(HasSubstr("experts.3.w2 is MXFP4 with MXFP8 floor inputs, "),
                    HasSubstr("experts.0.w2 is MXFP4 with unquantised inputs: expected one scheme for w2 of all "
                              "experts of a layer")));
}

TEST_F(QuantisedLoading, WhatTargetsLeaveOutAndIgnoreNamesIsToldAmongTheNotes) {
  const auto notes = [](const std::string& directory) {
    std::string all;
    for (const std::string& note : load_model(directory, LoadFormat::headers).notes) all += note + "\n";
    return all;
  };
  EXPECT_THAT(notes(sharded()), testing::Not(HasSubstr("although")));
  ASSERT_EQ(load_with([](StoredTensors&) {}), "no error");
  std::string text = read_text_file(sharded() + "/config.json", 1 << 20);
  for (const auto& [from, to] : {std::pair{"(q|k|v)_proj$", "q_proj$"}, {"re:.*lm_head.*", "re:.*experts.*"}}) {
    ASSERT_NE(text.find(from), std::string::npos) << from;
    text.replace(text.find(from), std::strlen(from), to);
  }
  write_text_file(changed() + "/config.json", text);
  EXPECT_THAT(notes(changed()),
              AllOf(HasSubstr("self_attn.k_proj is stored in MXFP8, although no targets"),
                    HasSubstr("experts.0.w1 is stored in MXFP4, although quantization_config.ignore names it")));
}

TEST_F(QuantisedLoading, ASchemeThatIsUnknownOrNotWhatIsStoredIsRefusedByName) {
  EXPECT_EQ(load_with([](StoredTensors&) {}), "no error");
  const Json config = parse_json_file(sharded() + "/config.json");
  const auto load_with_group = [&](const char* group, const std::function<void(Json&)>& change) {
    Json copy = config;
    Json q = *copy.find("quantization_config"), groups = *q.find("config_groups");
    if (change) {
      Json one = *groups.find(group), weights = *one.find("weights");
      change(weights);
      one.set("weights", weights);
      groups.set(group, one);
    } else {
      std::erase_if(groups.object(), [&](const JsonMember& m) { return m.key == group; });
    }
    q.set("config_groups", groups);
    copy.set("quantization_config", q);
    write_text_file(changed() + "/config.json", json_text(copy));
    return load(changed());
  };
  const std::string path = "quantization_config.config_groups.";
  EXPECT_THAT(load_with_group("group_0", [](Json& w) { w.set("group_size", 16); }),
              AllOf(HasSubstr(path + "group_0.weights: 4-bit float, strategy group, group_size 16"),
                    HasSubstr("expected MXFP4 or MXFP8")));
  EXPECT_THAT(load_with_group("group_1", [](Json& w) { w.set("type", "int"); }),
              HasSubstr(path + "group_1.weights: 8-bit int"));
  EXPECT_THAT(load_with_group("group_0", nullptr),
              AllOf(HasSubstr(".weight_packed: MXFP4, but the quantization_config of config.json names MXFP8")));
  EXPECT_THAT(load_with_group("group_1", nullptr),
              AllOf(HasSubstr(kQ + ": MXFP8, but the quantization_config of config.json names MXFP4")));
}

}  // namespace
}  // namespace kdelta::test
