// What a quantization_config says and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "kdelta/model/test_weights.h"

namespace kdelta {
namespace {

using testing::HasSubstr;

std::string group(const std::string& weights, const std::string& inputs = "null") {
  return R"({"targets": ["Linear"], "input_activations": )" + inputs + R"(, "weights": )" + weights + "}";
}

std::string arguments(int bits, const char* type = "float", int size = 32) {
  return str(R"({"num_bits": )", bits, R"(, "type": ")", type, R"(", "strategy": "group", "group_size": )", size,
             R"(, "symmetric": true})");
}

std::optional<Quantization> read(const std::string& groups, const char* method = "compressed-tensors") {
  const std::string text =
      str(R"({"quantization_config": {"quant_method": ")", method, R"(", "config_groups": {)", groups, "}}}");
  return read_quantization(JsonReader(parse_json(text, {.name = "config.json"}), {.name = "config.json"}));
}

TEST(Quantization, NamesTheSchemesOfEveryGroupOnce) {
  const auto q = read(R"("a": )" + group(arguments(4)) + R"(, "b": )" + group(arguments(8), arguments(8)) +
                      R"(, "c": )" + group(arguments(4)));
  ASSERT_TRUE(q);
  EXPECT_EQ(q->list(), "MXFP4, MXFP8");
  EXPECT_TRUE(q->names(Precision::mxfp8));
  EXPECT_EQ(read("")->list(), "nothing");
  EXPECT_FALSE(read_quantization(JsonReader(parse_json("{}", {.name = "config.json"}), {.name = "config.json"})));
}

TEST(Quantization, UnknownSchemesAndMethodsAreRefusedByField) {
  const auto refusal = [](auto f) { return test::error_of([&] { f(); }); };
  EXPECT_THAT(
      refusal([] { read(R"("a": )" + group(arguments(8, "int"))); }),
      HasSubstr("quantization_config.config_groups.a.weights: 8-bit int, strategy group, group_size 32, expected "));
  EXPECT_THAT(refusal([] { read(R"("a": )" + group(arguments(4, "float", 16))); }), HasSubstr("group_size 32"));
  EXPECT_THAT(refusal([] { read(R"("a": )" + group(arguments(2))); }), HasSubstr("expected MXFP4 or MXFP8"));
  EXPECT_THAT(refusal([] { read(R"("a": )" + group(arguments(8), arguments(8, "int"))); }),
              HasSubstr("config_groups.a.input_activations: "));
  EXPECT_THAT(refusal([] { read("", "gptq"); }), HasSubstr("quant_method: "));
}

// As kdelta quantize and the K3 release write it, and what others add.
constexpr const char* kWhole = R"({
  "quant_method": "compressed-tensors", "format": "mixed-precision", "quantization_status": "compressed",
  "kv_cache_scheme": null, "global_compression_ratio": null, "version": "0.13", "sparsity_config": {},
  "transform_config": {}, "ignore": ["re:.*lm_head.*"],
  "config_groups": {
    "a": {"format": "mxfp4-pack-quantized", "targets": ["Linear"], "input_activations": null,
          "output_activations": null,
          "weights": {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": true,
                      "dynamic": false, "actorder": null, "block_structure": null, "observer": "minmax",
                      "observer_kwargs": {"scale_rule": "rceil"}, "scale_dtype": "torch.uint8", "zp_dtype": null}},
    "b": {"format": "mxfp8-quantized", "targets": ["re:.*q_proj$"], "output_activations": null,
          "weights": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "actorder": false},
          "input_activations": {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32,
                                "dynamic": true, "actorder": null, "observer": null, "observer_kwargs": {},
                                "scale_dtype": "torch.uint8", "zp_dtype": null}}}})";

// kWhole with one field, at a path of member names, set to a value.
Json changed(const std::vector<std::string>& path, const Json& value) {
  const std::function<Json(Json, size_t)> set = [&](Json object, size_t depth) {
    object.set(path[depth], depth + 1 == path.size() ? value : set(*object.find(path[depth]), depth + 1));
    return object;
  };
  return set(parse_json(kWhole, {.name = "config.json"}), 0);
}

JsonReader config_of(Json quantization) {
  return JsonReader(Json::Object{{"quantization_config", std::move(quantization)}}, {.name = "config.json"});
}

TEST(Quantization, FieldsThatNobodyReadsAreListedAndThoseOfWritersAreNot) {
  const JsonReader known = config_of(parse_json(kWhole, {.name = "config.json"}));
  EXPECT_EQ(read_quantization(known)->list(), "MXFP4, MXFP8");
  EXPECT_THAT(known.unread(), testing::IsEmpty());
  const JsonReader other = config_of(changed({"config_groups", "a", "weights", "codebook"}, "x"));
  EXPECT_EQ(read_quantization(other)->list(), "MXFP4, MXFP8");
  EXPECT_THAT(other.unread(), testing::ElementsAre("quantization_config.config_groups.a.weights.codebook"));
}

TEST(Quantization, FieldsThatChangeWhatTensorsMeanAreRefusedByPath) {
  const std::string groups = "config_groups";
  struct Row {
    std::vector<std::string> path;
    Json value;
    const char* accepted;
  };
  for (const Row& row : std::vector<Row>{
           {{groups, "a", "format"}, "nvfp4-pack-quantized", "\"mxfp4-pack-quantized\", as its weights are MXFP4"},
           {{groups, "b", "format"}, "mxfp4-pack-quantized", "\"mxfp8-quantized\", as its weights are MXFP8"},
           {{"format"}, "pack-quantized", "the format of one of config_groups"},
           {{groups, "a", "weights", "scale_dtype"}, "torch.bfloat16", "\"torch.uint8\""},
           {{groups, "b", "input_activations", "scale_dtype"}, "torch.float32", "\"torch.uint8\""},
           {{groups, "a", "weights", "actorder"}, "group", "null"},
           {{groups, "b", "input_activations", "actorder"}, "weight", "null"},
           {{groups, "a", "weights", "block_structure"}, Json::Array{128, 128}, "null"},
           {{groups, "a", "weights", "dynamic"}, true, "false"},
           {{groups, "a", "output_activations"}, Json::Object{{"num_bits", 8}}, "null"},
           {{"kv_cache_scheme"}, Json::Object{{"num_bits", 8}}, "null"},
           {{"sparsity_config"}, Json::Object{{"format", "sparse-24-bitmask"}}, "null"},
           {{"transform_config"}, Json::Object{{"config_groups", Json::Object{}}}, "null"},
           {{"quantization_status"}, "frozen", "\"compressed\""},
       }) {
    std::string path = "quantization_config";
    for (const std::string& name : row.path) path += "." + name;
    EXPECT_THAT(
        test::error_of([&] { read_quantization(config_of(changed(row.path, row.value))); }),
        testing::AllOf(testing::StartsWith("config.json: " + path + ": "), HasSubstr(str("expected ", row.accepted))));
    EXPECT_EQ(test::error_of([&] { read_quantization(config_of(changed(row.path, nullptr))); }), "no error") << path;
  }
}

TEST(Quantization, TheFormatOfAllIsThatOfGroupsWithoutTheirOwn) {
  const auto refusal = [](const char* format, const std::string& groups) {
    const std::string text =
        str(R"({"quant_method": "compressed-tensors", "format": ")", format, R"(", "config_groups": {)", groups, "}}");
    return test::error_of([&] { read_quantization(config_of(parse_json(text, {.name = "config.json"}))); });
  };
  const std::string four = R"("a": )" + group(arguments(4)), eight = R"("b": )" + group(arguments(8));
  EXPECT_EQ(refusal("mxfp4-pack-quantized", four), "no error");
  EXPECT_EQ(refusal("mxfp8-quantized", eight), "no error");
  EXPECT_EQ(refusal("mixed-precision", four + ", " + eight), "no error");
  EXPECT_THAT(refusal("mxfp4-pack-quantized", eight),
              HasSubstr("quantization_config.format: string \"mxfp4-pack-quantized\", expected \"mxfp8-quantized\""));
  EXPECT_THAT(refusal("mxfp4-pack-quantized", four + ", " + eight), HasSubstr("as the weights of b are MXFP8"));
}

TEST(Quantization, IntegerWeightsAreRefusedAsThoseOfOtherEngines) {
  EXPECT_THAT(test::error_of([] { read(R"("a": )" + group(arguments(8, "int"))); }),
              HasSubstr("kdelta does not compute with integer weights, which are for other engines"));
}

std::string mxfp8_inputs(const std::string& kwargs) {
  return R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "dynamic": true, "observer_kwargs": )" +
         kwargs + "}";
}

// Row 8: the rule by either of its names, floor when nothing is said.
TEST(Quantization, ActivationsCarryTheirScaleRule) {
  const auto rule = [](const std::string& kwargs) {
    const MxInput input = read(R"("a": )" + group(arguments(8), mxfp8_inputs(kwargs)))->schemes.front().input;
    return to_string(input);
  };
  EXPECT_EQ(rule("{}"), "MXFP8 floor");
  EXPECT_EQ(rule("null"), "MXFP8 floor");
  EXPECT_EQ(rule(R"({"scale_rule": "floor"})"), "MXFP8 floor");
  EXPECT_EQ(rule(R"({"scale_rule": "rceil"})"), "MXFP8 rceil");
  EXPECT_EQ(rule(R"({"scale_rule": "even"})"), "MXFP8 even");
  EXPECT_EQ(rule(R"({"scale_alg": 0})"), "MXFP8 floor");
  EXPECT_EQ(rule(R"({"scale_alg": 1})"), "MXFP8 rceil");
  EXPECT_EQ(rule(R"({"scale_rule": "rceil", "scale_alg": 1})"), "MXFP8 rceil");
  const auto refusal = [&](const std::string& kwargs) { return test::error_of([&] { rule(kwargs); }); };
  EXPECT_THAT(refusal(R"({"scale_rule": "ceil"})"),
              testing::AllOf(HasSubstr("input_activations.observer_kwargs.scale_rule"), HasSubstr("\"rceil\"")));
  EXPECT_THAT(refusal(R"({"scale_alg": 2})"), HasSubstr("scale_alg"));
  EXPECT_THAT(refusal(R"({"scale_alg": 0, "scale_rule": "even"})"), HasSubstr("the number of scale_rule"));
}

// Row 15: weights alone are quantised, so inputs stay as they are.
TEST(Quantization, WithoutActivationsInputsAreTakenAsTheyAre) {
  const auto q = read(R"("a": )" + group(arguments(8)));
  EXPECT_FALSE(q->input_of("model.layers.0.self_attn.q_proj", Precision::mxfp8).quantised());
  EXPECT_FALSE(q->input_of("model.layers.0.self_attn.q_proj", Precision::mxfp4).quantised());
  const std::string fixed =
      R"({"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "dynamic": false})";
  EXPECT_THAT(test::error_of([&] { read(R"("a": )" + group(arguments(8), fixed)); }),
              HasSubstr("config_groups.a.input_activations: "));
}

TEST(Quantization, TargetsDecideBetweenSchemesThatDifferInActivationsOnly) {
  const auto with = [](const std::string& targets, const std::string& inputs) {
    return R"({"targets": )" + targets + R"(, "weights": )" + arguments(4) + R"(, "input_activations": )" + inputs +
           "}";
  };
  const auto input = [&](const std::string& groups, const std::string& module) {
    return to_string(read(groups)->input_of(module, Precision::mxfp4));
  };
  const std::string any = R"("a": )" + with(R"(["Linear"])", "null");
  const std::string q = "model.layers.3.self_attn.q_proj", expert = "model.layers.3.block_sparse_moe.experts.0.w1";
  const std::string pattern = any + R"(, "b": )" + with(R"(["re:.*self_attn\\.(q|k|v)_proj$"])", mxfp8_inputs("{}"));
  EXPECT_EQ(input(pattern, q), "MXFP8 floor");
  EXPECT_EQ(input(pattern, expert), "");
  // From the beginning of the name, as others read it.
  EXPECT_EQ(input(any + R"(, "b": )" + with(R"(["re:self_attn"])", mxfp8_inputs("{}")), q), "");
  EXPECT_EQ(input(any + R"(, "b": )" + with(R"([")" + q + R"("])", mxfp8_inputs("{}")), q), "MXFP8 floor");
  const std::string twice = any + R"(, "b": )" + with(R"(["Linear"])", mxfp8_inputs("{}"));
  EXPECT_THAT(test::error_of([&] { input(twice, q); }),
              testing::AllOf(HasSubstr("config_groups: a, b describe MXFP4 weights"), HasSubstr(q)));
  EXPECT_EQ(test::error_of([&] { (void)read(twice)->input_of(q, Precision::mxfp8); }), "no error");
  const std::string broken = any + R"(, "b": )" + with(R"(["re:("])", mxfp8_inputs("{}"));
  EXPECT_THAT(test::error_of([&] { input(broken, q); }), HasSubstr("pattern \"(\""));
}

TEST(Quantization, PatternsOfTargetsTakeNoMoreThanTheyShould) {
  const auto input = [](const std::string& pattern, const std::string& module) {
    const auto scheme = [](const std::string& target, const std::string& inputs) {
      return R"({"targets": [")" + target + R"("], "weights": )" + arguments(4) + R"(, "input_activations": )" +
             inputs + "}";
    };
    const std::string groups =
        R"("a": )" + scheme("Linear", "null") + R"(, "b": )" + scheme("re:" + pattern, mxfp8_inputs("{}"));
    return to_string(read(groups)->input_of(module, Precision::mxfp4));
  };
  // A backtracking search takes 2^64 steps to find that this does not fit.
  EXPECT_EQ(input("(a*)*b", std::string(64, 'a')), "");
  EXPECT_EQ(input("(a*)*b", std::string(64, 'a') + "b"), "MXFP8 floor");
  const auto refusal = [&](const std::string& pattern) { return test::error_of([&] { input(pattern, "a"); }); };
  EXPECT_THAT(refusal(R"((a)\\1)"), HasSubstr("pattern \"(a)\\1\""));
  EXPECT_THAT(refusal(std::string(100000, '(')), HasSubstr("100000 characters, expected at most 1000"));
  EXPECT_EQ(input(std::string(400, '(') + "a" + std::string(400, ')'), "a"), "MXFP8 floor");
}

// Row 8: from the description to the matrix, and through an update.
TEST(Quantization, MatricesTakeWhatTheDescriptionSaysAndKeepItThroughUpdates) {
  test::SmallLayer layer(2);
  test::MemoryTensors all = layer.whole();
  for (const char* name : {"l.q.weight", "l.k.weight", "l.v.weight"}) {
    all[name] = test::random_bytes(DType::f8_e4m3, {16, 64}, 1, 100);
    all[name + std::string("_scale")] = test::random_bytes(DType::u8, {16, 2}, 2);
  }
  BindOptions options = test::bind_options();
  options.quantization = read(R"("a": )" + group(arguments(8), mxfp8_inputs(R"({"scale_alg": 1})")));
  BoundWeights w = BoundWeights::expect(layer.specs(), options);
  w.allocate();
  for (int times = 0; times < 2; ++times) {
    test::put_all(w, all);
    for (const Matrix* m : {&layer.q, &layer.k, &layer.v}) EXPECT_EQ(to_string(m->input), "MXFP8 rceil");
    for (const Matrix* m : {&layer.b, &layer.g, &layer.o, &layer.f}) EXPECT_FALSE(m->input.quantised());
  }
}

// Quantised at different scales, or some of them not at all, q, k and v would no longer see one input.
TEST(Quantization, OneGroupWithInputsOfTwoSchemesIsRefusedByBothMembers) {
  const std::string even = mxfp8_inputs(R"({"scale_rule": "even"})"), floor = mxfp8_inputs("{}");
  const auto refusal = [](const std::string& q, const std::string& kv) {
    test::SmallLayer layer(4);
    test::MemoryTensors all = layer.whole();
    for (const char* name : {"l.q.weight", "l.k.weight", "l.v.weight"}) {
      all[name] = test::random_bytes(DType::f8_e4m3, {32, 64}, 1, 100);
      all[name + std::string("_scale")] = test::random_bytes(DType::u8, {32, 2}, 2);
    }
    const auto scheme = [](const char* targets, const std::string& inputs) {
      return str(R"({"targets": )", targets, R"(, "weights": )", arguments(8), R"(, "input_activations": )", inputs,
                 "}");
    };
    BindOptions options = test::bind_options();
    options.quantization = read(R"("a": )" + scheme(R"(["l.q"])", q) + R"(, "b": )" + scheme(R"(["re:l.[kv]$"])", kv));
    BoundWeights w = BoundWeights::expect(layer.specs(), options);
    w.allocate();
    return test::error_of([&] { test::put_all(w, all); });
  };
  EXPECT_EQ(refusal(even, even), "no error");
  EXPECT_THAT(
      refusal(even, floor),
      HasSubstr("tensor l.k is MXFP8 with MXFP8 floor inputs, l.q is MXFP8 with MXFP8 even inputs: expected one "
                "scheme for q, k and v of a layer"));
  EXPECT_THAT(refusal("null", floor), HasSubstr("l.q is MXFP8 with unquantised inputs: expected one scheme"));
}

TEST(Quantization, TargetsAndIgnoreListsThatContradictWhatIsStoredAreTold) {
  const std::string q = "l.self_attn.q_proj", k = "l.self_attn.k_proj", v = "l.self_attn.v_proj";
  const auto doubts = [&](const std::string& targets, const std::string& ignore) {
    const std::string text =
        str(R"({"quant_method": "compressed-tensors", "ignore": )", ignore, R"(, "config_groups": {"a": {"targets": )",
            targets, R"(, "weights": )", arguments(8), "}}}");
    return read_quantization(config_of(parse_json(text, {.name = "config.json"})))
        ->doubts({{q, Precision::mxfp8}, {k, Precision::mxfp8}, {v, Precision::mxfp8}});
  };
  using testing::ElementsAre;
  EXPECT_THAT(doubts(R"(["Linear"])", "[]"), testing::IsEmpty());
  EXPECT_THAT(doubts(R"(["re:.*(q|k|v)_proj$"])", R"(["re:.*o_proj"])"), testing::IsEmpty());
  EXPECT_THAT(doubts(R"(["re:.*q_proj"])", "[]"),
              ElementsAre(testing::AllOf(testing::StartsWith(k + " is stored in MXFP8, although no targets"),
                                         HasSubstr("not the only one"))));
  EXPECT_THAT(doubts(R"(["Linear"])", R"([")" + v + R"("])"),
              ElementsAre(v + " is stored in MXFP8, although quantization_config.ignore names it"));
  EXPECT_THAT(doubts(R"(["Linear"])", R"(["re:("])"), ElementsAre(HasSubstr("ignore: pattern \"(\"")));
}

// A release has a quarter of a million expert matrices: not every pattern is tried on every one.
TEST(Quantization, AnIgnoreEntryThatNamesOneExpertIsTold) {
  std::vector<StoredModule> stored;
  const auto name = [](int layer, int expert, const char* w) {
    return str("model.layers.", layer, ".block_sparse_moe.experts.", expert, ".", w);
  };
  for (int layer = 1; layer < 6; ++layer)
    for (int expert = 0; expert < 20; ++expert)
      for (const char* w : {"w1", "w3", "w2"}) stored.push_back({name(layer, expert, w), Precision::mxfp4});
  const auto doubts = [&](const std::string& targets, const std::string& ignored) {
    Quantization q;
    q.schemes = {{.group = "a", .weights = Precision::mxfp4, .input = {}, .targets = {targets}}};
    q.ignored = {ignored};
    return q.doubts(stored);
  };
  const auto told = [](const std::string& module, const char* rest = "") {
    return testing::ElementsAre(module + " is stored in MXFP4, although quantization_config.ignore names it" + rest);
  };
  EXPECT_THAT(doubts("Linear", name(3, 7, "w3")), told(name(3, 7, "w3")));
  EXPECT_THAT(doubts("Linear", R"(re:.*layers\.3\..*experts\.7\.w3$)"), told(name(3, 7, "w3")));
  EXPECT_THAT(doubts("Linear", R"(re:.*experts\.7\.w3$)"), told(name(1, 7, "w3"), ", and it is not the only one"));
  EXPECT_THAT(doubts("Linear", R"(re:.*experts\.1[2-4]\.w2$)"),
              told(name(1, 12, "w2"), ", and it is not the only one"));
  EXPECT_THAT(doubts("Linear", R"(re:.*experts\.70\.w3$)"), testing::IsEmpty());
  // All experts but the seventh.
  EXPECT_THAT(doubts(R"(re:.*experts\.([0-689]|1[0-9])\.w[123]$)", "lm_head"),
              testing::ElementsAre(
                  testing::StartsWith(name(1, 7, "w1") + " is stored in MXFP4, although no targets of its scheme")));
}

// Merge table, quantisation adaptation: which precisions of {q, k, v} and of {b, g, f_a, f_b} make a layer, and who
// quantises its input then.
TEST(Quantization, PackedKdaTakesThesePrecisionsOfItsTwoGroups) {
  enum class Format { bf16, f32, mxfp8, mxfp4 };
  const auto store = [](test::MemoryTensors& all, const std::string& name, Format format) {
    test::MemoryTensor& t = all.at(name);
    const int64_t rows = t.shape[0], cols = t.shape[1];
    switch (format) {
      case Format::bf16:
        return;
      case Format::f32:
        t = test::random_matrix(DType::f32, rows, cols, 3);
        return;
      case Format::mxfp8:
        t = test::random_bytes(DType::f8_e4m3, {rows, cols}, 4, 100);
        break;
      case Format::mxfp4:
        all[name + "_packed"] = test::random_bytes(DType::u8, {rows, cols / 2}, 5, 256);
        all.erase(name);
        break;
    }
    all[name + "_scale"] = test::random_bytes(DType::u8, {rows, cols / 32}, 6);
  };
  struct Row {
    Format qkv, b, rest;  // b; g, f_a and f_b
    const char* refused;  // "": a layer
  };
  const char *const one_precision = "expected one precision for gates of a layer", *const none = "";
  for (const Row& row : std::vector<Row>{{Format::bf16, Format::bf16, Format::bf16, none},
                                         {Format::f32, Format::bf16, Format::bf16, none},
                                         {Format::mxfp8, Format::bf16, Format::bf16, none},
                                         {Format::mxfp8, Format::f32, Format::f32, none},
                                         {Format::mxfp4, Format::bf16, Format::bf16, none},
                                         {Format::bf16, Format::mxfp8, Format::bf16, one_precision},
                                         {Format::mxfp8, Format::mxfp8, Format::bf16, one_precision}})
    for (const bool inputs : {false, true}) {
      test::SmallLayer layer(4);
      test::MemoryTensors all = layer.whole();
      for (const char* name : {"l.q.weight", "l.k.weight", "l.v.weight"}) store(all, name, row.qkv);
      store(all, "l.b.weight", row.b);
      for (const char* name : {"l.g.weight", "l.f_a.weight", "l.f_b.weight"}) store(all, name, row.rest);
      const std::string given = inputs ? mxfp8_inputs(R"({"scale_rule": "even"})") : "null";
      BindOptions options = test::bind_options();
      options.quantization = read(R"("a": )" + group(arguments(8), given) + R"(, "b": )" + group(arguments(4), given));
      BoundWeights w = BoundWeights::expect(layer.specs(), options);
      w.allocate();
      const std::string message = test::error_of([&] { test::put_all(w, all); });
      if (row.refused != none) {
        EXPECT_THAT(message, HasSubstr(row.refused));
        continue;
      }
      ASSERT_EQ(message, "no error");
      w.finalize();
      const bool quantised = inputs && (row.qkv == Format::mxfp8 || row.qkv == Format::mxfp4);
      for (const Matrix* m : {&layer.q, &layer.k, &layer.v})
        EXPECT_EQ(to_string(m->input), quantised ? "MXFP8 even" : "");
      for (const Matrix* m : {&layer.b, &layer.g, &layer.f}) EXPECT_FALSE(m->input.quantised());
    }
}

TEST(Quantization, TwoFormsOfOneWeightAreRefusedByName) {
  test::SmallLayer layer(2);
  test::MemoryTensors all = layer.whole();
  all["l.o.weight_packed"] = test::random_bytes(DType::u8, {64, 8}, 1);
  all["l.o.weight_scale"] = test::random_bytes(DType::u8, {64, 1}, 2);
  BoundWeights w = BoundWeights::expect(layer.specs(), test::bind_options());
  EXPECT_EQ(test::error_of([&] { test::put_all(w, all); }),
            "put: both l.o.weight and l.o.weight_packed, expected one form of a weight");
}

// A checkpoint of one scheme whose tensors are of another, or that says nothing.
TEST(Quantization, TensorsOfASchemeThatIsNotNamedAreRefused) {
  test::SmallLayer layer(2);
  test::MemoryTensors all = layer.whole();
  for (const char* name : {"l.q.weight", "l.k.weight", "l.v.weight"}) {
    all[name] = test::random_bytes(DType::f8_e4m3, {16, 64}, 1, 100);
    all[name + std::string("_scale")] = test::random_bytes(DType::u8, {16, 2}, 2);
  }
  const auto refusal = [&](std::vector<Precision> schemes) {
    BindOptions options = test::bind_options();
    options.quantization.emplace();
    for (Precision p : schemes) options.quantization->schemes.push_back({.group = "g", .weights = p});
    BoundWeights w = BoundWeights::expect(layer.specs(), options);
    w.allocate();
    return test::error_of([&] { test::put_all(w, all); });
  };
  EXPECT_EQ(refusal({Precision::mxfp4, Precision::mxfp8}), "no error");
  EXPECT_THAT(refusal({Precision::mxfp4}),
              HasSubstr(".weight: MXFP8, but the quantization_config of config.json names MXFP4"));
  EXPECT_THAT(refusal({}), HasSubstr(".weight: MXFP8, but the quantization_config of config.json names nothing"));
}

}  // namespace
}  // namespace kdelta
