// g++ 12 warns about std::regex itself in sanitized builds.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

// kdelta quantize: exact bytes, a description that others read, nothing half done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>

#include "kdelta/api/engine.h"
#include "kdelta/api/quantize.h"
#include "kdelta/core/matrix.h"
#include "kdelta/io/json_reader.h"
#include "kdelta/io/safetensors.h"
#include "kdelta/model/load.h"
#include "kdelta/ops/mx_quant/mx_quant.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char *kTiny = "models/tiny-k3", *kLinear = "tests/golden/linear_a";

class Quantize : public testing::Test {
 protected:
  Quantize() {
    std::string name = testing::TempDir() + "kdelta_quantize_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~Quantize() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return folder_ + "/" + name; }
  QuantizeOptions options(const std::string& model) const { return {.model = model, .out = at("out"), .threads = 2}; }

  // A checkpoint of one file beside the config of tiny-k3; quantize() looks at names and shapes alone.
  std::string checkpoint(const std::vector<TensorToWrite>& tensors) const {
    fs::create_directory(at("source"));
    fs::copy_file(std::string(kTiny) + "/config.json", at("source/config.json"), fs::copy_options::overwrite_existing);
    write_safetensors(at("source/model.safetensors"), tensors);
    return at("source");
  }

  std::string folder_;
};

// A matrix of a checkpoint, whatever its format.
Matrix matrix_of(const Checkpoint& c, const std::string& module) {
  const TensorInfo* scale = c.find(module + ".weight_scale");
  const uint8_t* scales = scale == nullptr ? nullptr : c.data(*scale);
  if (const TensorInfo* packed = c.find(module + ".weight_packed"))
    return dense_matrix(c.data(*packed), DType::f4_e2m1, packed->shape[0], 2 * packed->shape[1], scales);
  const TensorInfo* t = c.find(module + ".weight");
  return dense_matrix(c.data(*t), t->dtype, t->shape[0], t->shape[1], scales);
}

std::vector<float> row_of(const Matrix& m, int64_t row) {
  std::vector<float> out(static_cast<size_t>(m.cols));
  dequantize_row(m, row, out.data());
  return out;
}

// The bytes of `got` are those that the reference quantiser makes of `source`.
void expect_exact(const Matrix& source, const Matrix& got, MxScaleRule rule, const std::string& name) {
  test::TestExec ex;
  ex.force("mx_quantize", "reference");
  const int64_t code_bytes = mx_code_bytes(got.dtype, got.cols), scale_bytes = mx_scale_bytes(got.cols);
  std::vector<uint8_t> codes(static_cast<size_t>(code_bytes)), scale(static_cast<size_t>(scale_bytes));
  for (int64_t r = 0; r < source.rows; ++r) {
    std::vector<float> row = row_of(source, r);
    mx_quantize(ex, {.format = got.dtype,
                     .rule = rule,
                     .x = View<const float>(row.data(), {1, source.cols}),
                     .codes = View<uint8_t>(codes.data(), {1, code_bytes}),
                     .scale = View<uint8_t>(scale.data(), {1, scale_bytes})});
    ASSERT_EQ(std::memcmp(codes.data(), got.row(r), codes.size()), 0) << name << " row " << r;
    ASSERT_EQ(std::memcmp(scale.data(), got.scale_row(r), scale.size()), 0) << name << " row " << r;
  }
}

std::string module_of(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

TEST_F(Quantize, WritesTheExactQuantisationOfTheNamedMatricesAndCopiesTheRest) {
  for (const std::string rule : {"floor", "even"}) {
    QuantizeOptions o = options(kLinear);
    o.weight_rule = rule;
    o.out = at(rule);
    const QuantizeReport report = quantize(o);
    const Checkpoint source = Checkpoint::open(kLinear), got = Checkpoint::open(o.out);
    std::map<std::string, int64_t> quantised;
    for (const TensorInfo& t : source.tensors()) {
      if (const TensorInfo* same = got.find(t.name); same != nullptr && same->dtype == t.dtype) {
        EXPECT_EQ(same->shape, t.shape);
        EXPECT_EQ(std::memcmp(source.data(t), got.data(*same), static_cast<size_t>(t.bytes)), 0) << t.name;
        continue;
      }
      const std::string module = module_of(t.name);
      const Matrix m = matrix_of(got, module);
      ++quantised[std::string(dtype_name(m.dtype))];
      expect_exact(matrix_of(source, module), m, rule == "even" ? MxScaleRule::even : MxScaleRule::floor, module);
    }
    // Layers 1, 2 and 4 of 1 to 5 are KDA; q_proj of the MLA layers keeps its format. Four MoE layers of 8 experts.
    EXPECT_EQ(quantised, (std::map<std::string, int64_t>{{"F8_E4M3", 9}, {"F4", 96}}));
    EXPECT_EQ(got.find("model.layers.2.self_attn.q_proj.weight")->dtype, DType::bf16);
    EXPECT_EQ(report.bytes_before, source.total_bytes());
    EXPECT_EQ(report.bytes_after, got.total_bytes());
  }
}

TEST_F(Quantize, AMatrixLargerThanThePieceIsWrittenPieceByPieceWithTheSameBytes) {
  constexpr int64_t rows = 2600, cols = 4096;  // F32: pieces of 16 MB are 1024 rows
  std::vector<float> data(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < data.size(); ++i)
    data[i] = static_cast<float>(static_cast<int64_t>(i * 2654435761u % 2001) - 1000);
  const std::string name = "language_model.model.layers.0.self_attn.k_proj";
  QuantizeOptions o = options(checkpoint({{name + ".weight", DType::f32, {rows, cols}, data.data()}}));
  const QuantizeReport report = quantize(o);
  const Checkpoint got = Checkpoint::open(o.out);
  const Matrix m = matrix_of(got, name);
  ASSERT_EQ(m.dtype, DType::f8_e4m3);
  const Matrix source = dense_matrix(data.data(), DType::f32, rows, cols);
  for (int64_t r : {int64_t{0}, int64_t{1023}, int64_t{1024}, int64_t{2047}, int64_t{2048}, rows - 1})
    expect_exact(source.slice_rows(r, 1), m.slice_rows(r, 1), MxScaleRule::rceil, name);
  EXPECT_LE(report.buffer_bytes, int64_t{21} << 20);  // a piece, its codes and its scales
}

TEST_F(Quantize, ExpertsThatWereDequantisedGetTheirValuesBack) {
  // MXFP4 values in bf16: another scale may hold the same block, the values may not change.
  const Checkpoint tiny = Checkpoint::open(kTiny);
  const std::string module = "language_model.model.layers.1.block_sparse_moe.experts.3.w2";
  const Matrix released = matrix_of(tiny, module);
  std::vector<bf16> wide;
  for (int64_t r = 0; r < released.rows; ++r)
    for (float x : row_of(released, r)) wide.push_back(to_bf16(x));
  QuantizeOptions o =
      options(checkpoint({{module + ".weight", DType::bf16, {released.rows, released.cols}, wide.data()}}));
  quantize(o);
  const Checkpoint got = Checkpoint::open(o.out);
  for (int64_t r = 0; r < released.rows; ++r)
    ASSERT_EQ(row_of(matrix_of(got, module), r), row_of(released, r)) << "row " << r;
}

TEST_F(Quantize, TheConfigNamesTheFormatsAndExactlyTheQuantisedModules) {
  QuantizeOptions o = options(kTiny);
  o.activation_rule = "rceil";
  quantize(o);
  const Json config = parse_json_file(o.out + "/config.json"),
             source = parse_json_file(std::string(kTiny) + "/config.json");
  EXPECT_EQ(config.find("quantization_config"), nullptr);
  const JsonReader q =
      JsonReader::open(o.out + "/config.json").get<JsonReader>("text_config").get<JsonReader>("quantization_config");
  EXPECT_EQ(q.get<std::string>("quant_method"), "compressed-tensors");
  EXPECT_EQ(q.get<std::string>("format"), "mixed-precision");
  const auto groups = q.get<JsonReader>("config_groups");
  const auto experts = groups.get<JsonReader>("group_0"), qkv = groups.get<JsonReader>("group_1");
  // The release's own experts, copied: the group says what it said.
  EXPECT_EQ(
      json_text(*groups.raw("group_0")),
      json_text(*source.find("text_config")->find("quantization_config")->find("config_groups")->find("group_0")));
  EXPECT_EQ(qkv.get<std::string>("format"), "mxfp8-quantized");
  EXPECT_THAT(qkv.get<std::vector<std::string>>("targets"),
              ElementsAre("re:.*layers\\.(0|1|3|4)\\.self_attn\\.(q|k|v)_proj$"));
  const auto activations = qkv.get<JsonReader>("input_activations");
  EXPECT_EQ(activations.get<JsonReader>("observer_kwargs").get<std::string>("scale_rule"), "rceil");
  EXPECT_TRUE(activations.get<bool>("dynamic"));
  EXPECT_EQ(qkv.get<JsonReader>("weights").get<JsonReader>("observer_kwargs").get<std::string>("scale_rule"), "rceil");
  EXPECT_THAT(q.get<std::vector<std::string>>("ignore"),
              testing::IsSupersetOf({"re:.*layers\\.(2|5)\\.self_attn\\..*", "re:.*lm_head.*",
                                     "re:.*self_attn\\.(f_a|f_b|g|g_a|g_b|b|o)_proj$"}));
  // Everything else stays.
  Json stripped = *config.find("text_config"), before = *source.find("text_config");
  stripped.set("quantization_config", nullptr);
  before.set("quantization_config", nullptr);
  EXPECT_EQ(stripped.object().size(), before.object().size());
  for (const JsonMember& m : before.object()) EXPECT_EQ(*stripped.find(m.key), m.value) << m.key;
}

// What a reader that goes by targets and ignore lists, as compressed-tensors defines them, makes of the modules' names.
TEST_F(Quantize, TheConfigSelectsAModuleIfAndOnlyIfItIsStoredQuantised) {
  for (const char* model : {kTiny, kLinear}) {
    QuantizeOptions o = options(model);
    o.out = at(std::string(model) == kTiny ? "tiny" : "linear");
    quantize(o);
    const ModelConfig config = read_config(o.out);
    const JsonReader root = JsonReader::open(o.out + "/config.json");
    const JsonReader text = config.kind == ModelKind::kimi_k3 ? root.get<JsonReader>("text_config") : root;
    std::vector<std::regex> ignored;
    for (const std::string& p : text.get<JsonReader>("quantization_config").get<std::vector<std::string>>("ignore"))
      ignored.emplace_back(p.substr(std::strlen("re:")));
    int modules = 0;
    const Checkpoint checkpoint = Checkpoint::open(o.out);
    for (const TensorInfo& t : checkpoint.tensors()) {
      const size_t end = t.name.rfind(".weight");
      if (end == t.name.npos || t.name.ends_with("_scale") || t.shape.size() != 2) continue;
      const std::string module = t.name.substr(0, end);
      if (module.ends_with("embed_tokens") || module.ends_with("conv1d")) continue;  // no linear modules
      const bool selected = std::ranges::none_of(ignored, [&](const std::regex& r) {
        return std::regex_search(module, r, std::regex_constants::match_continuous);
      });
      EXPECT_EQ(selected, checkpoint.find(module + ".weight_scale") != nullptr) << module;
      ++modules;
    }
    EXPECT_GT(modules, 100);
  }
}

TEST_F(Quantize, OneQuantisedGroupIsDescribedWithoutMixing) {
  QuantizeOptions o = options(kLinear);
  o.qkv = "keep";
  quantize(o);
  const JsonReader q = JsonReader::open(o.out + "/config.json").get<JsonReader>("quantization_config");
  EXPECT_EQ(q.get<std::string>("format"), "mxfp4-pack-quantized");
  EXPECT_EQ(q.get<JsonReader>("config_groups").keys().size(), 1u);
  EXPECT_THAT(q.get<std::vector<std::string>>("ignore"), testing::Contains("re:.*self_attn.*"));
}

TEST_F(Quantize, Int8RowsAreTheNearestOfTheirScaleAndTheEngineRefusesThemByName) {
  QuantizeOptions o = options(kLinear);
  o.qkv = "int8";
  o.experts = "keep";
  quantize(o);
  const Checkpoint source = Checkpoint::open(kLinear), got = Checkpoint::open(o.out);
  int64_t matrices = 0;
  for (const TensorInfo& t : got.tensors()) {
    if (t.dtype != DType::i8) continue;
    ++matrices;
    const Matrix before = matrix_of(source, module_of(t.name));
    const TensorInfo& scales = *got.find(t.name + "_scale");
    EXPECT_EQ(scales.dtype, DType::f32);
    EXPECT_EQ(scales.shape, (std::vector<int64_t>{before.rows, 1}));
    for (int64_t r = 0; r < before.rows; ++r) {
      float scale, amax = 0;
      std::memcpy(&scale, got.data(scales) + 4 * r, sizeof(scale));
      const std::vector<float> row = row_of(before, r);
      for (float x : row) amax = std::max(amax, std::fabs(x));
      ASSERT_EQ(scale, amax / 127);
      const auto* codes = reinterpret_cast<const int8_t*>(got.data(t) + r * before.cols);
      for (size_t c = 0; c < row.size(); ++c) ASSERT_EQ(codes[c], std::nearbyint(row[c] / scale)) << t.name << " " << r;
    }
  }
  EXPECT_EQ(matrices, 9);
  const JsonReader q = JsonReader::open(o.out + "/config.json").get<JsonReader>("quantization_config");
  EXPECT_EQ(q.get<std::string>("format"), "int-quantized");
  EXPECT_THAT(error_of([&] { load_model(o.out, LoadFormat::checkpoint); }),
              AllOf(HasSubstr("config_groups.group_0.weights: 8-bit int"), HasSubstr("expected MXFP4 or MXFP8")));
}

TEST_F(Quantize, TheEngineLoadsItWithTheStoredFormats) {
  for (const char* model : {kTiny, kLinear}) {
    QuantizeOptions o = options(model);
    o.out = at(fs::path(model).filename());
    quantize(o);
    LoadOptions load{.model = o.out, .threads = 2, .max_length = 64};
    Engine engine = Engine::load(load);
    GenerateOptions greedy{.temperature = 0, .max_tokens = 8};
    greedy.ignore_eos = true;
    EXPECT_EQ(engine.generate({1, 2, 3}, greedy).tokens.size(), 8u);
    std::set<std::string> attention, experts;
    for (const auto& g : engine.info().groups) {
      const std::string precision = g.dtype + (g.inputs.empty() ? "" : ", inputs " + g.inputs);
      if (g.name == "attention") attention.insert(precision);
      if (g.name == "routed experts") experts.insert(precision);
    }
    EXPECT_EQ(attention, (std::set<std::string>{"BF16", "F32", "MXFP8, inputs MXFP8 floor"}));
    EXPECT_EQ(experts, (std::set<std::string>{"MXFP4"}));
  }
}

// Every matrix of a scheme with activations takes them so, whichever layer it is in.
TEST_F(Quantize, ExpertsInW8A8RunWithQuantisedInputs) {
  QuantizeOptions o = options(kLinear);
  o.experts = "mxfp8";
  o.activation_rule = "even";
  quantize(o);
  Engine engine = Engine::load({.model = o.out, .threads = 2, .max_length = 64});
  GenerateOptions greedy{.temperature = 0, .max_tokens = 4};
  greedy.ignore_eos = true;
  EXPECT_EQ(engine.generate({1, 2, 3}, greedy).tokens.size(), 4u);
  for (const auto& g : engine.info().groups)
    if (g.name == "routed experts") {
      EXPECT_EQ(g.dtype + ", inputs " + g.inputs, "MXFP8, inputs MXFP8 even");
    }
}

TEST_F(Quantize, ADryRunWritesNothingAndForetellsTheSizes) {
  QuantizeOptions o = options(kLinear);
  o.experts = "mxfp8";
  o.dry_run = true;
  const QuantizeReport told = quantize(o);
  EXPECT_TRUE(fs::is_empty(folder_));
  o.dry_run = false;
  const QuantizeReport done = quantize(o);
  EXPECT_EQ(told.bytes_after, done.bytes_after);
  EXPECT_EQ(Checkpoint::open(o.out).total_bytes(), told.bytes_after);
  ASSERT_EQ(told.groups.size(), 3u);
  EXPECT_EQ(told.groups[1].name, "routed experts");
  EXPECT_EQ(told.groups[1].format, "MXFP8");
  EXPECT_EQ(told.groups[1].bytes_after, told.groups[1].bytes_before / 64 * 33);  // 2 bytes to 1 and a 32nd
}

std::map<std::string, std::string> contents(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    out[entry.path().filename()].assign(std::istreambuf_iterator<char>(file), {});
  }
  return out;
}

TEST_F(Quantize, AStoppedRunLeavesNothingThatLoadsAndTheSameCommandGoesOn) {
  QuantizeOptions o = options(kTiny);
  quantize(o);
  const auto whole = contents(o.out);
  o.out = at("again");
  std::atomic<bool> stop{false};
  QuantizeOptions stopped = o;
  stopped.cancel = &stop;
  // In the middle of the fourth file.
  stopped.progress = [&](int64_t done, int64_t total) { stop = done * 7 > total * 4; };
  EXPECT_THAT(error_of([&] { quantize(stopped); }), HasSubstr("cancelled; the same command goes on"));
  EXPECT_FALSE(fs::exists(o.out));
  EXPECT_NE(error_of([&] { Checkpoint::open(o.out + ".partial"); }), "no error");
  EXPECT_NE(error_of([&] { read_config(o.out + ".partial"); }), "no error");
  // What a run that was killed while writing leaves behind.
  std::ofstream(o.out + ".partial/model-00005-of-000007.safetensors.partial-1-1") << "half";
  QuantizeOptions other = o;
  other.weight_rule = "floor";
  EXPECT_THAT(error_of([&] { quantize(other); }), HasSubstr("an unfinished run with other settings"));
  const QuantizeReport report = quantize(o);
  EXPECT_GE(report.files_kept, 3);
  EXPECT_LT(report.files_kept, 7);
  EXPECT_EQ(contents(o.out), whole);
  EXPECT_FALSE(fs::exists(o.out + ".partial"));
}

// A changed byte, a file that was cut, one of another checkpoint, one that no run is known to have finished.
TEST_F(Quantize, AFinishedFileThatIsNotAsItWasLeftIsMadeAgain) {
  QuantizeOptions o = options(kTiny);
  quantize(o);
  const auto whole = contents(o.out);
  const std::string partial = at("again.partial"), done = partial + "/kdelta_quantize_done.json";
  const auto file = [&](int number) { return str(partial, "/model-0000", number, "-of-000007.safetensors"); };
  const auto stop_in_file_five = [&] {
    o.out = at("again");
    fs::remove_all(o.out);
    std::atomic<bool> stop{false};
    QuantizeOptions stopped = o;
    stopped.cancel = &stop;
    stopped.progress = [&](int64_t, int64_t) { stop = fs::exists(file(4)); };
    EXPECT_THAT(error_of([&] { quantize(stopped); }), HasSubstr("cancelled"));
    EXPECT_TRUE(fs::exists(file(4)) && !fs::exists(file(5)));
  };
  struct Row {
    const char* what;
    std::function<void()> damage;
    int64_t kept, redone;
  };
  for (const Row& row : std::vector<Row>{
           {"nothing", [] {}, 4, 0},
           {"a byte of data",
            [&] {
              std::fstream f(file(2), std::ios::binary | std::ios::in | std::ios::out);
              f.seekg(-100, std::ios::end);
              const int byte = f.get();
              f.seekp(-100, std::ios::end);
              f.put(static_cast<char>(byte ^ 1));
            },
            3, 1},
           {"the end of a file", [&] { fs::resize_file(file(1), fs::file_size(file(1)) - 1); }, 3, 1},
           {"a file of another", [&] { fs::copy_file(file(1), file(3), fs::copy_options::overwrite_existing); }, 3, 1},
           {"a file too many", [&] { fs::copy_file(file(1), file(6)); }, 4, 1},
           {"a file missing", [&] { fs::remove(file(1)); }, 3, 0},
           {"the list", [&] { std::ofstream(done) << "{"; }, 0, 4},
       }) {
    stop_in_file_five();
    row.damage();
    const QuantizeReport report = quantize(o);
    EXPECT_EQ(report.files_kept, row.kept) << row.what;
    EXPECT_EQ(report.files_redone, row.redone) << row.what;
    EXPECT_TRUE(contents(o.out) == whole) << row.what;
  }
}

TEST_F(Quantize, NothingIsOverwritten) {
  fs::create_directory(at("full"));
  std::ofstream(at("full/notes.txt")) << "mine";
  std::ofstream(at("file")) << "mine";
  fs::create_directory(at("taken.partial"));
  std::ofstream(at("taken.partial/notes.txt")) << "mine";
  QuantizeOptions o = options(kTiny);
  for (const char* name : {"full", "file"}) {
    o.out = at(name);
    EXPECT_EQ(error_of([&] { quantize(o); }), "out: " + o.out + " exists, expected a new name or an empty folder");
  }
  o.out = at("taken");
  EXPECT_THAT(error_of([&] { quantize(o); }), HasSubstr("taken.partial exists and is not ours"));
  EXPECT_EQ(contents(at("taken.partial")), (std::map<std::string, std::string>{{"notes.txt", "mine"}}));
  EXPECT_EQ(contents(at("full")), (std::map<std::string, std::string>{{"notes.txt", "mine"}}));
}

TEST_F(Quantize, OptionsAreRefusedByName) {
  const auto refusal = [&](auto change) {
    QuantizeOptions o = options(kTiny);
    change(o);
    return error_of([&] { quantize(o); });
  };
  EXPECT_EQ(refusal([](QuantizeOptions& o) { o.qkv = "fp8"; }), "qkv: 'fp8', accepted: mxfp8, mxfp4, int8, keep");
  EXPECT_EQ(refusal([](QuantizeOptions& o) { o.experts = ""; }), "experts: '', accepted: mxfp8, mxfp4, int8, keep");
  EXPECT_EQ(refusal([](QuantizeOptions& o) { o.weight_rule = "ceil"; }),
            "weight_rule: 'ceil', accepted: floor, rceil, even");
  EXPECT_EQ(refusal([](QuantizeOptions& o) { o.activation_rule = "1"; }),
            "activation_rule: '1', accepted: floor, rceil, even");
  EXPECT_THAT(refusal([](QuantizeOptions& o) { o.qkv = "keep"; }), HasSubstr("nothing would be quantised"));
  EXPECT_EQ(refusal([](QuantizeOptions& o) { o.out = ""; }), "out: empty name");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Quantize, TensorsThatCannotBeQuantisedAreRefusedByName) {
  const std::string q = "language_model.model.layers.0.self_attn.q_proj.weight";
  std::vector<bf16> data(64 * 96, to_bf16(1));
  const auto refusal = [&](const std::vector<TensorToWrite>& tensors) {
    QuantizeOptions o = options(checkpoint(tensors));
    const std::string message = error_of([&] { quantize(o); });
    EXPECT_FALSE(fs::exists(o.out));
    fs::remove_all(o.out + ".partial");
    return message;
  };
  EXPECT_THAT(refusal({{q, DType::bf16, {64, 90}, data.data()}}),
              AllOf(HasSubstr(q), HasSubstr("90 columns, expected a multiple of the scale block 32")));
  EXPECT_THAT(refusal({{q, DType::f16, {64, 96}, data.data()}}), AllOf(HasSubstr(q), HasSubstr("dtype F16")));
  EXPECT_THAT(refusal({{q, DType::bf16, {64 * 96}, data.data()}}), HasSubstr("expected a matrix"));
  EXPECT_THAT(refusal({{q, DType::bf16, {64, 96}, data.data()},
                       {"language_model.model.layers.0.mlp.up_proj.weight", DType::f8_e4m3, {4, 32}, data.data()}}),
              AllOf(HasSubstr("mlp.up_proj.weight"), HasSubstr("quantised already")));
}

// Names that only look like those of a layer or an expert.
TEST_F(Quantize, AMatrixUnderANumberThatIsNoneIsCopied) {
  std::vector<bf16> data(64 * 96, to_bf16(1));
  std::vector<TensorToWrite> tensors = {
      {"language_model.model.layers.0.self_attn.q_proj.weight", DType::bf16, {64, 96}, data.data()}};
  for (const char* number : {"-1", "-0", "00", "01", "+1", " 1", "", "99999999999999999999", "0x1"}) {
    tensors.push_back(
        {str("language_model.model.layers.", number, ".self_attn.q_proj.weight"), DType::bf16, {64, 96}, data.data()});
    tensors.push_back({str("language_model.model.layers.1.block_sparse_moe.experts.", number, ".w1.weight"),
                       DType::bf16,
                       {64, 96},
                       data.data()});
  }
  QuantizeOptions o = options(checkpoint(tensors));
  quantize(o);
  const Checkpoint result = Checkpoint::open(o.out);
  EXPECT_EQ(std::ssize(result.tensors()), std::ssize(tensors) + 1);
  for (size_t i = 1; i < tensors.size(); ++i) EXPECT_EQ(result.find(tensors[i].name)->dtype, DType::bf16);
}

// One description serves all of a group.
TEST_F(Quantize, AGroupThatWouldBeStoredInTwoFormatsIsRefusedByBothTensors) {
  const std::string attention = "language_model.model.layers.0.self_attn.";
  const std::string expert = "language_model.model.layers.1.block_sparse_moe.experts.";
  std::vector<bf16> data(64 * 96, to_bf16(1));
  const TensorToWrite q = {attention + "q_proj.weight", DType::bf16, {64, 96}, data.data()};
  const auto refusal = [&](const std::vector<TensorToWrite>& experts) {
    std::vector<TensorToWrite> all = {q};
    all.insert(all.end(), experts.begin(), experts.end());
    QuantizeOptions o = options(checkpoint(all));
    o.experts = "keep";
    return error_of([&] { quantize(o); });
  };
  const TensorToWrite packed = {expert + "0.w1.weight_packed", DType::u8, {4, 16}, data.data()},
                      packed_scale = {expert + "0.w1.weight_scale", DType::u8, {4, 1}, data.data()},
                      eight = {expert + "1.w1.weight", DType::f8_e4m3, {4, 32}, data.data()},
                      eight_scale = {expert + "1.w1.weight_scale", DType::u8, {4, 1}, data.data()},
                      plain = {expert + "2.w1.weight", DType::bf16, {4, 32}, data.data()};
  EXPECT_THAT(refusal({packed, packed_scale, eight, eight_scale}),
              AllOf(HasSubstr(eight.name + ": MXFP8 in the result, " + packed.name + " MXFP4"),
                    HasSubstr("expected one format for all of routed experts")));
  EXPECT_THAT(refusal({packed, packed_scale, plain}), HasSubstr(plain.name + ": floating point in the result"));
  EXPECT_EQ(refusal({plain}), "no error");
}

TEST_F(Quantize, AnotherFormatOfAGroupAndWeightsThatAreNotFiniteAreRefused) {
  const std::string q = "language_model.model.layers.0.self_attn.q_proj.weight";
  const std::string expert = "language_model.model.layers.1.block_sparse_moe.experts.0.w1";
  std::vector<bf16> data(64 * 96, to_bf16(1));
  QuantizeOptions o = options(checkpoint({{q, DType::bf16, {64, 96}, data.data()},
                                          {expert + ".weight_packed", DType::u8, {4, 16}, data.data()},
                                          {expert + ".weight_scale", DType::u8, {4, 1}, data.data()}}));
  o.experts = "mxfp8";
  EXPECT_THAT(error_of([&] { quantize(o); }),
              AllOf(HasSubstr(expert), HasSubstr("dtype U8 of routed experts, only BF16 and F32 are quantised")));
  data[5 * 96 + 7] = to_bf16(NAN);
  o = options(checkpoint({{q, DType::bf16, {64, 96}, data.data()}}));
  EXPECT_THAT(error_of([&] { quantize(o); }), AllOf(HasSubstr(q), HasSubstr("not finite in row 5")));
  fs::remove_all(o.out + ".partial");
  data[3 * 96] = to_bf16(INFINITY);
  o = options(checkpoint({{q, DType::bf16, {64, 96}, data.data()}}));
  o.qkv = "int8";
  EXPECT_THAT(error_of([&] { quantize(o); }), HasSubstr("not finite in row 3"));
  EXPECT_FALSE(fs::exists(o.out));
}

}  // namespace
}  // namespace kdelta
