// The schedules of layers on two queues, as captured graphs: who waits for whom, and that neither the second queue nor
// a delay on either of them changes a bit.
#include "kdelta/layers/kda/kda.h"
#include "kdelta/layers/moe/moe.h"
#include "kdelta/ops/norm/norm.h"
#include "tests/gpu/layer_arrays.h"
#include "tests/gpu/roof.h"
#include "tests/support/op_test.h"
#include "tests/support/schedule.h"

namespace kdelta::test {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

constexpr int64_t kHidden = 256, kHeads = 2, kDim = 128, kRows = 3, kSlots = 5, kWidth = 3 * kHeads * kDim;

// Where each op's nodes begin in the graph that is being captured.
class OpRecorder final : public OpObserver {
 public:
  explicit OpRecorder(const Stream& stream) : stream_(stream) {}
  void on_op(std::string_view op, std::string_view, const Cost&) override {
    ops.push_back({std::string(op), Graph::recorded_so_far(stream_)});
  }
  std::vector<RecordedOp> ops;

 private:
  const Stream& stream_;
};

// While a fork is open, a delay on one of its queues in front of every op.
class Delay final : public OpObserver {
 public:
  Delay(const CudaExec& device, bool side)
      : aux_(*device.exec().aux), stream_(side ? *aux_.stream : *device.exec().stream) {}
  void on_op(std::string_view, std::string_view, const Cost&) override {
    if (aux_.open) gpu_bench::enqueue_delay(stream_, 100'000);
  }

 private:
  const AuxQueue& aux_;
  Stream& stream_;
};

// Three rows through a sublayer behind the norm that makes its inputs, over arrays that run() sets back.
class Sublayer {
 public:
  virtual ~Sublayer() = default;
  explicit Sublayer(CudaExec& device) : device_(device), arrays_(device.stream()) {
    raw_ = AnyView(arrays_.random<bf16>(kRows * kHidden, 1.0f), DType::bf16, {kRows, kHidden});
    norm_ = View<const float>(arrays_.random<float>(kHidden, 1.0f), {kHidden});
    x_ = AnyView(arrays_.random<bf16>(kRows * kHidden, 1.0f), DType::bf16, {kRows, kHidden});
    b_.n_decode = kRows, b_.max_len = 1;
    b_.cu = {arrays_.put<int32_t>({0, 1, 2, 3}), {kRows + 1}};
    b_.slot = {arrays_.put<int32_t>({2, -1, 4}), {kRows, 1}};
    b_.accepted = {arrays_.put<int32_t>({1, 1, 1}), {kRows}};
    b_.fresh = {arrays_.put<uint8_t>({0, 0, 1}), {kRows}};
    b_.context = b_.accepted, b_.snapshot = {arrays_.put<int32_t>({0, 0, -1}), {1, 3}};
    changes(AnyView(arrays_.random<bf16>(kRows * kHidden, 1.0f), DType::bf16, {kRows, kHidden}));
  }
  // rows: Options::overlap_rows.
  Exec exec(int64_t rows, OpObserver* observer) {
    options_.overlap_rows = rows;
    Exec ex = device_.exec();
    ex.options = &options_, ex.observer = observer;
    return ex;
  }
  void enqueue(const Exec& ex) {
    norm(ex, {.x = raw_, .weight = norm_, .out = x_, .eps = 1e-5f});
    forward(ex, x_, changed_[0]);
  }
  // Everything that the sublayer writes, as bytes, after `launch`.
  std::vector<char> run(const std::function<void()>& launch) {
    Stream& stream = device_.stream();
    for (size_t i = 0; i < changed_.size(); ++i) copy_async(stream, changed_[i].data, before_[i], bytes(changed_[i]));
    launch();
    std::vector<char> all;
    for (const AnyView& v : changed_) {
      all.resize(all.size() + static_cast<size_t>(bytes(v)));
      copy_async(stream, all.data() + all.size() - bytes(v), v.data, bytes(v));
      stream.synchronize();
    }
    return all;
  }
  Schedule schedule(int64_t rows, const std::vector<std::string>& names) {
    (void)run([&] { enqueue(exec(rows, nullptr)); });  // kernels are loaded before anything is captured
    OpRecorder recorder(device_.stream());
    const Exec ex = exec(rows, &recorder);
    const Graph graph = Graph::capture(ex, [&] { enqueue(ex); });
    return Schedule(graph.nodes().size(), graph.edges(), recorder.ops, names);
  }

 protected:
  virtual void forward(const Exec& ex, const AnyConstView& x, const AnyView& out) = 0;
  static int64_t bytes(const AnyView& v) { return v.shape.numel() * dtype_bytes(v.dtype); }
  void changes(const AnyView& v) {
    std::vector<char> now(static_cast<size_t>(bytes(v)));
    copy_async(device_.stream(), now.data(), v.data, bytes(v));
    device_.stream().synchronize();
    changed_.push_back(v);
    before_.push_back(arrays_.put(now));
  }

  CudaExec& device_;
  Options options_;
  LayerArrays arrays_;
  Batch b_;
  AnyView raw_, x_;
  View<const float> norm_;
  std::vector<AnyView> changed_;  // out first
  std::vector<char*> before_;
};

class KdaSublayer final : public Sublayer {
 public:
  // mixed: q, k and v are MXFP8 and take MXFP8 inputs, the rest is bf16.
  KdaSublayer(CudaExec& device, bool mixed)
      : Sublayer(device),
        layer_({.hidden = kHidden,
                .heads = kHeads,
                .head_dim = kDim,
                .conv_width = 4,
                .full_rank_gate = true,
                .bounded_gate = true,
                .lower_bound = -5,
                .norm_eps = 1e-5f}) {
    arrays_.bind(layer_.weights(), [&](const std::string& name) {
      return mixed && (name == "q_proj" || name == "k_proj" || name == "v_proj");
    });
    changes(
        AnyView(arrays_.random<float>(kSlots * kHeads * kDim * kDim, 0.3f), DType::f32, {kSlots, kHeads, kDim, kDim}));
    changes(AnyView(arrays_.random<bf16>(kSlots * 3 * kWidth, 1.0f), DType::bf16, {kSlots, 3, kWidth}));
  }
  void forward(const Exec& ex, const AnyConstView& x, const AnyView& out) override {
    const AnyView pools[] = {changed_[1], changed_[2]};
    layer_.forward(ex, b_, pools, x, {}, out);
  }

 private:
  KdaLayer layer_;
};

class MoeSublayer final : public Sublayer {
 public:
  MoeSublayer(CudaExec& device, int64_t latent)
      : Sublayer(device),
        layer_({.hidden = kHidden,
                .experts = 8,
                .chosen = 2,
                .width = 128,
                .latent = latent,
                .latent_norm = latent > 0,
                .shared_width = 128,
                .norm_eps = 1e-5f}) {
    arrays_.bind(layer_.weights());
    options_.force["grouped_linear"] = "cuda";  // gate and up one by one, whatever the faster rows do in one
  }
  void forward(const Exec& ex, const AnyConstView& x, const AnyView& out) override {
    layer_.forward(ex, b_, x, {}, out);
  }

 private:
  Moe layer_;
};

TEST(CudaSchedule, AKdaLayerOfOneFormatRunsBothStepsOfItsDecayBesideTheProjections) {
  CudaExec device;
  KdaSublayer kda(device, false);
  const Schedule s = kda.schedule(64, {"x=norm", "decay and beta=linear", "decay's second step=linear",
                                       "q k v g=linear", "step=kda_decode", "out=linear"});
  EXPECT_THAT(s.edges(), UnorderedElementsAre("x -> decay and beta", "x -> q k v g",             // fork
                                              "decay and beta -> decay's second step",           // side
                                              "decay's second step -> step", "q k v g -> step",  // join
                                              "step -> out"));
  EXPECT_THAT(s.tails(), ElementsAre("out"));
}

TEST(CudaSchedule, AKdaLayerOfTwoFormatsQuantisesAndProjectsBesideItsGates) {
  CudaExec device;
  KdaSublayer kda(device, true);
  const Schedule s = kda.schedule(64, {"x=norm", "decay, beta and g=linear", "decay's second step=linear",
                                       "quantise=mx_quantize", "q k v=linear", "step=kda_decode", "out=linear"});
  EXPECT_THAT(s.edges(), UnorderedElementsAre("x -> decay, beta and g", "x -> quantise",       // fork
                                              "decay, beta and g -> decay's second step",      // side
                                              "quantise -> q k v",                             // main
                                              "decay's second step -> step", "q k v -> step",  // join
                                              "step -> out"));
  EXPECT_THAT(s.tails(), ElementsAre("out"));
}

TEST(CudaSchedule, SharedExpertsRunBesideTheRoutedOnesUntilTheSum) {
  CudaExec device;
  MoeSublayer moe(device, 0);
  const Schedule s = moe.schedule(64, {"x=norm", "shared gate up=linear", "shared act=activation", "shared down=linear",
                                       "scores=linear", "router=router", "gate=grouped_linear", "up=grouped_linear",
                                       "act=activation", "down=grouped_linear", "sum=moe_combine"});
  EXPECT_THAT(s.edges(), UnorderedElementsAre("x -> shared gate up", "x -> scores",                         // fork
                                              "shared gate up -> shared act", "shared act -> shared down",  // side
                                              "scores -> router", "router -> gate", "gate -> up", "up -> act",
                                              "act -> down", "down -> sum", "shared down -> sum"));  // join
  EXPECT_THAT(s.tails(), ElementsAre("sum"));
}

TEST(CudaSchedule, SharedExpertsRunBesideLatentOnesUntilTheyAreProjectedUp) {
  CudaExec device;
  MoeSublayer moe(device, 128);
  const Schedule s =
      moe.schedule(64, {"x=norm", "shared gate up=linear", "shared act=activation", "shared down=linear",
                        "latent=linear", "scores=linear", "router=router", "gate=grouped_linear", "up=grouped_linear",
                        "act=activation", "down=grouped_linear", "sum=moe_combine", "normed=norm", "up again=linear"});
  EXPECT_THAT(s.edges(),
              UnorderedElementsAre("x -> shared gate up", "x -> latent",                         // fork
                                   "shared gate up -> shared act", "shared act -> shared down",  // side
                                   "latent -> scores", "scores -> router", "router -> gate", "gate -> up", "up -> act",
                                   "act -> down", "down -> sum", "sum -> normed", "normed -> up again",
                                   "shared down -> up again"));  // join
  EXPECT_THAT(s.tails(), ElementsAre("up again"));
}

TEST(CudaSchedule, WithoutASecondQueueEveryOpWaitsForTheOneBefore) {
  CudaExec device;
  KdaSublayer kda(device, true);
  const Schedule s = kda.schedule(0, {"x=norm", "quantise=mx_quantize", "q k v=linear", "decay, beta and g=linear",
                                      "decay's second step=linear", "step=kda_decode", "out=linear"});
  EXPECT_THAT(s.edges(), UnorderedElementsAre("x -> quantise", "quantise -> q k v", "q k v -> decay, beta and g",
                                              "decay, beta and g -> decay's second step", "decay's second step -> step",
                                              "step -> out"));
}

// Run op by op and recorded, with a delay on the main queue, on the second one, and on neither.
void expect_serial_bits(CudaExec& device, Sublayer& layer) {
  const std::vector<char> serial = layer.run([&] { layer.enqueue(layer.exec(0, nullptr)); });
  Delay main(device, false), side(device, true);
  const std::pair<const char*, OpObserver*> cases[] = {{"no delay", nullptr}, {"main", &main}, {"side", &side}};
  for (const auto& [name, delay] : cases) {
    const Exec ex = layer.exec(64, delay);
    EXPECT_TRUE(layer.run([&] { layer.enqueue(ex); }) == serial) << name;
    const Graph graph = Graph::capture(ex, [&] { layer.enqueue(ex); });
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(layer.run([&] { graph.launch(device.stream()); }) == serial) << name << ", replay " << i;
  }
}

TEST(CudaSchedule, NeitherTheSecondQueueNorADelayChangesABitOfAKdaLayer) {
  CudaExec device;
  for (const bool mixed : {false, true}) {
    KdaSublayer kda(device, mixed);
    expect_serial_bits(device, kda);
  }
  EXPECT_EQ(device.take_faults(), 0u);
}

TEST(CudaSchedule, NeitherTheSecondQueueNorADelayChangesABitOfExperts) {
  CudaExec device;
  for (const int64_t latent : {0, 128}) {
    MoeSublayer moe(device, latent);
    expect_serial_bits(device, moe);
  }
  EXPECT_EQ(device.take_faults(), 0u);
}

TEST(CudaSchedule, WorkBehindTheJoinOfASideIsRefused) {
  CudaExec device;
  KdaSublayer kda(device, false);
  (void)kda.run([&] { kda.enqueue(kda.exec(64, nullptr)); });
  const Exec ex = kda.exec(64, nullptr);
  const auto error = [&](const std::function<void(const Fork&)>& behind) {
    return error_of([&] {
      (void)Graph::capture(ex, [&] {
        Fork side(ex);
        gpu_bench::enqueue_delay(*side.exec().stream, 1);
        side.join();
        behind(side);
      });
    });
  };
  EXPECT_EQ(error([](const Fork&) {}), "no error");
  EXPECT_THAT(error([&](const Fork& side) { kda.enqueue(side.exec()); }), testing::HasSubstr("joined"));
  // Past the ops' own check, the recording itself finds what nothing waits for.
  EXPECT_THAT(error([&](const Fork& side) { gpu_bench::enqueue_delay(*side.exec().stream, 1); }),
              testing::HasSubstr("end of capture"));
  const std::vector<char> serial = kda.run([&] { kda.enqueue(kda.exec(0, nullptr)); });
  EXPECT_TRUE(kda.run([&] { kda.enqueue(ex); }) == serial) << "the queues go on";
}

}  // namespace
}  // namespace kdelta::test
