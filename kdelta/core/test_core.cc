// core: dtypes against their definitions, shapes and views, arena, threads, options, instruction-set choice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <set>

#include "kdelta/core/check.h"
#include "kdelta/core/exec.h"
#include "kdelta/core/fault.h"
#include "kdelta/core/graph.h"
#include "kdelta/core/matrix.h"
#include "tests/support/op_test.h"

namespace kdelta {
namespace {

TEST(Dtype, Bf16RoundsToNearestEvenOnEveryUpperHalfAndItsTies) {
  for (uint32_t high = 0; high < 0x10000; ++high) {
    const float exact = std::bit_cast<float>(high << 16);
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(exact))));
      continue;
    }
    ASSERT_EQ(to_bf16(exact).bits, high);
    if (std::isinf(exact)) continue;
    const uint32_t up = high + 1, tie = (high << 16) | 0x8000u;
    ASSERT_EQ(to_bf16(std::bit_cast<float>(tie - 1)).bits, high);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(tie)).bits, (high & 1) != 0 ? up : high);
    ASSERT_EQ(to_bf16(std::bit_cast<float>(tie + 1)).bits, up);
  }
}

TEST(Dtype, F16RoundTripsEveryCodeAndRoundsTiesToEven) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const f16 h{static_cast<uint16_t>(code)};
    const float x = to_float(h);
    if (std::isnan(x)) continue;
    ASSERT_EQ(to_f16(x).bits, code) << code;
    const f16 next{static_cast<uint16_t>(code + 1)};
    if (std::isinf(x) || std::isinf(to_float(next)) || (code & 0x7fff) == 0x7fff) continue;
    const float middle = (x + to_float(next)) / 2;  // exact in fp32
    ASSERT_EQ(to_f16(middle).bits, (code & 1) != 0 ? code + 1 : code) << code;
  }
  EXPECT_EQ(to_f16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(to_f16(65520.0f).bits, 0x7c00);
  EXPECT_TRUE(std::isnan(to_float(to_f16(NAN))));
}

TEST(Dtype, F8CodesFollowTheOcpTables) {
  EXPECT_EQ(f8_e4m3_to_float(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(f8_e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(f8_e4m3_to_float(0xff)));
  EXPECT_EQ(f8_e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(f8_e4m3_to_float(0x08), 0x1p-6f);
  EXPECT_EQ(f8_e4m3_to_float(0x80), 0.0f);
  EXPECT_TRUE(std::signbit(f8_e4m3_to_float(0x80)));
  EXPECT_EQ(f8_e4m3_to_float(0xb8), -1.0f);
  EXPECT_EQ(f8_e5m2_to_float(0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(f8_e5m2_to_float(0x7c)));
  EXPECT_EQ(f8_e5m2_to_float(0x01), 0x1p-16f);
}

TEST(Dtype, NamesRoundTripAndUnknownOnesAreRefused) {
  for (DType d : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::f8_e4m3, DType::f8_e5m2, DType::f8_e8m0,
                  DType::f4_e2m1, DType::i8, DType::u8, DType::i16, DType::i32, DType::i64, DType::boolean}) {
    DType back{};
    ASSERT_TRUE(parse_dtype(dtype_name(d), &back));
    EXPECT_EQ(back, d);
  }
  DType none{};
  EXPECT_FALSE(parse_dtype("F33", &none));
  EXPECT_FALSE(parse_dtype("", &none));
  EXPECT_THAT(test::error_of([] { (void)dtype_bytes(DType::f4_e2m1); }), testing::HasSubstr("no whole bytes"));
}

TEST(View, SlicesAreViewsAndOutOfRangeOnesAreRefused) {
  std::vector<float> data(24);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const AnyView v(data.data(), DType::f32, {4, 6});
  EXPECT_EQ(v.columns(2, 3).at<float>(1)[0], 8.0f);
  EXPECT_EQ(v.rows(3, 1).at<float>(0)[5], 23.0f);
  const AnyView split = v.split_last(2, 3);
  EXPECT_EQ(to_string(split.shape), "[4, 2, 3]");
  EXPECT_EQ(split.at<float>(1, 1)[0], 9.0f);
  EXPECT_THAT(test::error_of([&] { (void)v.columns(4, 3); }), testing::HasSubstr("slice 4+3"));
  EXPECT_THAT(test::error_of([&] { (void)v.split_last(4, 2); }), testing::HasSubstr("[4, 6] into 4 x 2"));
  EXPECT_THAT(test::error_of([&] { (void)v.as<bf16>(); }), testing::HasSubstr("F32, wanted BF16"));
}

// Case A6: products of token, row, chunk and slot numbers leave 32 bits.
TEST(View, OffsetsAreSixtyFourBit) {
  auto* base = reinterpret_cast<bf16*>(uintptr_t{1} << 40);
  const View<bf16> tokens(base, {262144, 96, 128});
  EXPECT_EQ(tokens.at(262143, 95, 127) - base, int64_t{262144} * 96 * 128 - 1);
  auto* state = reinterpret_cast<float*>(uintptr_t{1} << 40);
  const View<float> slots(state, {4096, 96, 128 * 128});
  EXPECT_EQ(slots.at(1366) - state, int64_t{1366} * 96 * 128 * 128);
  EXPECT_EQ(slots.at(4095, 95, 128 * 128 - 1) - state, int64_t{4096} * 96 * 128 * 128 - 1);
  const AnyView any(base, DType::bf16, {262144, 96 * 128});
  EXPECT_EQ(any.at<bf16>(262143) - base, int64_t{262143} * 96 * 128);
  const Matrix experts = dense_matrix(base, DType::bf16, int64_t{896} * 3584, 2048);
  EXPECT_EQ(experts.row(int64_t{895} * 3584) - reinterpret_cast<uint8_t*>(base), int64_t{895} * 3584 * 2048 * 2);
  EXPECT_EQ(experts.bytes(), int64_t{896} * 3584 * 2048 * 2);
}

TEST(Arena, ScopesGiveBackAndTheMeasuringArenaFindsThePeak) {
  Arena arena(Device{}, 1024), measuring = Arena::measuring(Device{});
  for (Arena* a : {&arena, &measuring}) {
    void* first = a->take(100);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % Arena::kAlign, 0u);
    {
      Arena::Scope scope(*a);
      (void)a->take(512);
      EXPECT_EQ(a->used(), 128 + 512);
    }
    EXPECT_EQ(a->used(), 128);
    EXPECT_EQ(a->peak(), 128 + 512);
  }
  EXPECT_THAT(test::error_of([&] { (void)arena.take(1000); }),
              testing::HasSubstr("of 1024 bytes cannot lend 1000 more (128 in use)"));
  (void)measuring.take(int64_t{1} << 50);
  EXPECT_GT(measuring.peak(), int64_t{1} << 50);
}

TEST(Threads, EveryRankRunsOncePerCallManyTimesOver) {
  for (int n : {1, 2, 5}) {
    ThreadPool pool(n);
    EXPECT_EQ(pool.size(), n);
    std::vector<std::atomic<int>> counts(static_cast<size_t>(n));
    auto f = [&](int rank) { counts[static_cast<size_t>(rank)].fetch_add(1); };
    for (int i = 0; i < 2000; ++i) pool.run(f);
    for (auto& c : counts) EXPECT_EQ(c.load(), 2000);
  }
}

TEST(Threads, AnExceptionOfAnyRankReachesTheCallerAndThePoolGoesOn) {
  ThreadPool pool(3);
  for (int bad = 0; bad < 3; ++bad) {
    auto f = [&](int rank) {
      if (rank == bad) fail(ErrorCode::failed, "rank ", rank);
    };
    EXPECT_EQ(test::error_of([&] { pool.run(f); }), "rank " + std::to_string(bad));
  }
  std::atomic<int> sum{0};
  auto f = [&](int rank) { sum += rank; };
  pool.run(f);
  EXPECT_EQ(sum.load(), 3);
}

TEST(Threads, TheChildOfAForkIsToldInsteadOfHanging) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow fork() from a threaded process";
#endif
  ThreadPool pool(2);
  auto nothing = [](int) {};
  pool.run(nothing);
  const pid_t child = fork();
  if (child == 0) {
    const bool told = test::error_of([&] { pool.run(nothing); }).find("fork") != std::string::npos;
    _exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Options, ForceListsAreParsedAndMalformedOnesRefused) {
  Options o;
  o.parse_force("kda:reference,linear:avx2");
  EXPECT_EQ(o.force.at("kda"), "reference");
  EXPECT_EQ(o.force.at("linear"), "avx2");
  o.parse_force("");
  for (const char* bad : {"kda", "kda:", ":x", "a:b,c", "a:b,,c:d"})
    EXPECT_THAT(test::error_of([&] { o.parse_force(bad); }), testing::HasSubstr("expected OP:VARIANT")) << bad;
}

TEST(Isa, LevelsHaveNamesAndUnknownOnesAreRefusedWithTheList) {
  for (IsaLevel l : {IsaLevel::portable, IsaLevel::avx2, IsaLevel::avx512, IsaLevel::avx512_bf16, IsaLevel::amx})
    EXPECT_EQ(parse_isa(to_string(l)), l);
  EXPECT_EQ(test::error_of([] { (void)parse_isa("sse"); }),
            "isa: 'sse', accepted: portable, avx2, avx512, avx512_bf16, amx");
}

// Case H1: a build without CUDA says so in one line; nothing throws before somebody asks for the device.
TEST(Device, AMissingCudaIsALineNotACrash) {
  EXPECT_GE(cuda_device_count(), 0);
  EXPECT_FALSE(cuda_device_summary().empty());
  if (cuda_device_count() == 0) {
    EXPECT_THAT(test::error_of([] { Buffer b({DeviceKind::cuda, 0}, 16); }), testing::HasSubstr("cuda:0"));
  }
}

// Case H1: what was built is held against the device before anything is read.
TEST(Device, CodeRunsWhereItsArchitectureSays) {
  const auto level = [](const char* built, int major, int minor) { return cuda_code_level(built, major, minor); };
  constexpr auto kNone = CudaLevel::none, kPortable = CudaLevel::sm80, kHopper = CudaLevel::sm90a;
  EXPECT_EQ(level("90a-real", 9, 0), kHopper);
  for (const auto& [major, minor] : {std::pair(7, 5), {8, 0}, {8, 9}, {10, 0}, {12, 0}})
    EXPECT_EQ(level("90a-real", major, minor), kNone) << major << "." << minor;
  EXPECT_EQ(level("80-real 90a-real", 8, 0), kPortable);
  EXPECT_EQ(level("80-real 90a-real", 8, 6), kPortable) << "machine code runs on later minor numbers";
  EXPECT_EQ(level("80-real;90a-real", 9, 0), kHopper);
  EXPECT_EQ(level("90a-real;80-real", 9, 0), kHopper);
  EXPECT_EQ(level("80-real", 9, 0), kNone);
  EXPECT_EQ(level("86-real", 8, 0), kNone);
  EXPECT_EQ(level("80", 9, 0), kPortable) << "PTX";
  EXPECT_EQ(level("80-virtual", 12, 0), kPortable);
  EXPECT_EQ(level("90-virtual", 8, 9), kNone);
  EXPECT_EQ(level("90a-real 100f-real", 10, 0), kPortable);
  EXPECT_EQ(level("75 80", 7, 5), kNone) << "below what the kernels ask for";
  EXPECT_EQ(level("all", 8, 0), kPortable);
  EXPECT_EQ(level("", 9, 0), kNone);
}

TEST(Device, WithoutCudaEveryPartOfItRefusesByNameWithTheReason) {
  if (kCudaBuild) GTEST_SKIP() << "a CUDA build";
  const Device cuda{DeviceKind::cuda, 0};
  Exec ex;
  ex.device = cuda;
  const std::string want = "cuda:0: this build has no CUDA; one configured with -DKDELTA_CUDA=ON has it";
  EXPECT_EQ(test::error_of([&] { Stream s(cuda); }), want);
  EXPECT_EQ(test::error_of([&] { Event e(cuda); }), want);
  EXPECT_EQ(test::error_of([&] { (void)default_stream(cuda); }), want);
  EXPECT_EQ(test::error_of([&] { (void)device_properties(cuda); }), want);
  EXPECT_EQ(test::error_of([&] { (void)device_free_bytes(cuda); }), want);
  EXPECT_EQ(test::error_of([&] { (void)device_refusal(cuda); }), want);
  EXPECT_EQ(test::error_of([&] { HostBuffer b(cuda, 16); }), want);
  EXPECT_EQ(test::error_of([&] { (void)Graph::capture(ex, [] {}); }), want);
}

TEST(Device, HostBuffersOfTheCpuArePlainMemory) {
  HostBuffer b(Device{}, 64);
  std::memset(b.data(), 7, 64);
  EXPECT_EQ(b.as<uint8_t>()[63], 7);
  EXPECT_EQ(b.bytes(), 64);
}

TEST(Fork, OnTheCpuIsTheMainQueueUntilItIsJoined) {
  test::TestExec ex;
  Fork side(ex);
  EXPECT_EQ(side.exec().scratch, ex.exec().scratch);
  EXPECT_EQ(side.exec().threads, ex.exec().threads);
  side.join();
  EXPECT_EQ(side.exec().scratch, nullptr) << "a joined side must not take work";
  EXPECT_THAT(test::error_of([&] { side.join(); }), testing::HasSubstr("joined twice"));
}

// The bookkeeping of a second queue, walked by a plan: no device is touched.
TEST(Fork, HasItsOwnScratchAndAnUnjoinedOneIsCaughtByTheNextForkAndByTheStepsEnd) {
  Arena main_scratch = Arena::measuring(Device{}), side_scratch = Arena::measuring(Device{});
  AuxQueue aux{.scratch = &side_scratch};
  Exec ex;
  ex.scratch = &main_scratch;
  ex.aux = &aux;
  ex.planning = true;
  {
    Fork side(ex);
    EXPECT_EQ(side.exec().scratch, &side_scratch);
    EXPECT_EQ(side.exec().aux, nullptr) << "a side does not fork again";
    EXPECT_THAT(test::error_of([&] { ex.expect_joined(); }), testing::HasSubstr("never joined"));
    side.join();
    ex.expect_joined();
  }
  { Fork forgotten(ex); }
  EXPECT_THAT(test::error_of([&] { ex.expect_joined(); }), testing::HasSubstr("never joined"));
  EXPECT_THAT(test::error_of([&] { Fork next(ex); }), testing::HasSubstr("never joined"));
  aux.open = false;
  (void)test::error_of([&] {
    Fork side(ex);
    fail(ErrorCode::failed, "a step fails");
  });
  ex.expect_joined();
}

TEST(Fault, BitsHaveTheNamesOfTheArgumentsAndNoneIsEmpty) {
  EXPECT_EQ(fault_names(0), "");
  EXPECT_EQ(fault_names(static_cast<uint32_t>(Fault::slot) | static_cast<uint32_t>(Fault::accepted)), "accepted, slot");
}

}  // namespace
}  // namespace kdelta
