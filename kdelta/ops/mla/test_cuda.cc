// mla on CUDA against the fp64 reference: every length around blocks and pages, widths, formats, strides, mixed rows,
// faults; and the bits of one row against its company.
#include "kdelta/core/fault.h"
#include "kdelta/ops/mla/test_cuda_scene.h"

namespace kdelta::test {
namespace {

// The widths of both releases, which the tensor cores take.
constexpr MlaCudaSizes kRelease{.H = 3, .nope = 128, .rope = 64, .value = 128, .latent = 512, .page = 64};
constexpr DType kWeight[] = {DType::f32, DType::bf16, DType::f4_e2m1, DType::f8_e4m3, DType::f8_e5m2};

template <class X>
void check(const MlaCudaSizes& s, const std::vector<PagedRow>& rows, int prefill, DType format = DTypeOf<X>::value) {
  check_mla<X>(s, rows, prefill, format, [](MlaCudaCase<X>&) {});
}

TEST(MlaCuda, EqualsTheReferenceAtEveryLengthAroundBlocksAndPages) {
  for (int prefill : {0, 1})
    for (int32_t context : {0, 1, 31, 62, 63, 64, 65, 127, 130})
      for (int32_t len : {1, 2, 5, 17, 64, 65}) {
        if (prefill == 0 && len > 5) continue;
        check<float>({}, {{context, len}}, prefill);
        check<bf16>({.page = 64}, {{context, len}}, prefill);
      }
}

TEST(MlaCuda, EqualsTheReferenceAtEveryWidthHeadCountAndPageSize) {
  for (const MlaCudaSizes& s :
       {MlaCudaSizes{1, 1, 1, 1, 1, 1}, MlaCudaSizes{3, 3, 5, 7, 9, 5}, MlaCudaSizes{5, 16, 0, 16, 16, 64},
        MlaCudaSizes{2, 15, 17, 31, 33, 7}, MlaCudaSizes{9, 17, 15, 33, 31, 65}, MlaCudaSizes{1, 33, 1, 65, 130, 128},
        MlaCudaSizes{2, 200, 64, 24, 64, 48}, MlaCudaSizes{12, 128, 64, 128, 512, 64},
        MlaCudaSizes{1, 8, 8, 8, 9000, 4}})
    for (int prefill : {0, 1, 3}) {
      check<float>(s, {{70, 3}, {0, 9}, {5, 1}}, prefill);
      check<bf16>(s, {{70, 3}, {0, 9}, {5, 1}}, prefill);
    }
}

TEST(MlaCuda, EveryWeightFormatStandsForItsValues) {
  for (DType format : kWeight)
    for (int prefill : {0, 1})
      for (int64_t shift : {0, 1}) {
        if (shift != 0 && format == DType::f4_e2m1) continue;  // half a byte
        const MlaCudaSizes s{.nope = 13, .value = 19, .latent = 64, .shift = shift};
        check<float>(s, {{30, 4}}, prefill, format);
        check<bf16>(s, {{30, 4}}, prefill, format);
      }
}

TEST(MlaCuda, PrefillVerificationDecodeAndEmptyRowsBesideEachOtherEqualTheReference) {
  const std::vector<PagedRow> rows{{64, 70}, {0, 130}, {9, 0}, {200, 3}, {500, 1}, {0, 1}, {63, 8}, {64, 1}, {5, 0}};
  for (int prefill : {0, 3, 9}) {
    check<float>({.H = 3}, rows, prefill);
    check<bf16>({.H = 4, .page = 64, .tail = 40}, rows, prefill);
  }
  check<bf16>({.tail = 9}, {{5, 0}}, 0);
}

TEST(MlaCuda, StridedQueriesAndOutputsEqualTheReferenceAndGapsStay) {
  for (int prefill : {0, 1}) {
    check<float>({.q_gap = 5, .out_gap = 3}, {{30, 6}}, prefill);
    check<bf16>({.q_gap = 8, .out_gap = 16}, {{30, 6}}, prefill);
  }
}

// Rows 1 and 3 are wrong, in a way that `wrong` makes; the others are as if they were alone.
template <class X>
void check_fault(const MlaCudaSizes& sizes, Fault fault,
                 const std::function<void(PagedArraysOnHost<X>&, int64_t n)>& wrong) {
  for (int prefill : {0, 2, 4}) {
    SCOPED_TRACE(str(fault_names(static_cast<uint32_t>(fault)), " prefill ", prefill));
    check_mla<X>(sizes, {{40, 3}, {20, 2}, {7, 1}, {33, 4}}, prefill, DTypeOf<X>::value, [&](MlaCudaCase<X>& m) {
      m.c.faults = static_cast<uint32_t>(fault);
      auto sound = std::make_shared<std::vector<int32_t>>();
      auto each = [&m](auto&& f) {
        for (Guarded<int32_t>* a : {&m.p.pages, &m.p.context})
          for (int64_t i = 0; i < a->size(); ++i) f((*a)[i]);
      };
      m.c.fill = [&m, wrong, sound, each](Rng& rng) {
        m.fill(rng);
        sound->clear();
        each([&](int32_t& x) { sound->push_back(x); });
        for (int64_t n : {1, 3}) wrong(m.p, n);
      };
      m.c.reference = [&m, sound, each](const Exec& ex, const EffectCase::At& at) {
        std::vector<int32_t> bad;
        each([&](int32_t& x) { bad.push_back(x); });
        size_t i = 0;
        each([&](int32_t& x) { x = (*sound)[i++]; });
        mla(ex, m.args(at));
        i = 0;
        each([&](int32_t& x) { x = bad[i++]; });
        const int64_t row = m.p.s.H * m.p.s.value;
        for (int64_t n : {1, 3}) std::fill_n(&m.out[m.p.cu[n] * row], (m.p.cu[n + 1] - m.p.cu[n]) * row, X{});
      };
    });
  }
}

template <class X>
void check_faults(const MlaCudaSizes& sizes) {
  using Arrays = PagedArraysOnHost<X>;
  check_fault<X>(sizes, Fault::page, [](Arrays& p, int64_t n) { p.pages[n * p.P] = n == 1 ? 0 : -1; });
  check_fault<X>(sizes, Fault::page, [](Arrays& p, int64_t n) {
    const PagedRow& r = p.rows[static_cast<size_t>(n)];
    p.pages[n * p.P + (r.context + r.len - 1) / p.s.page] = static_cast<int32_t>(p.cache.shape()[0] + n - 1);
  });
  check_fault<X>(sizes, Fault::page, [](Arrays& p, int64_t n) { p.context[n] = -static_cast<int32_t>(n); });
  check_fault<X>(sizes, Fault::length, [](Arrays& p, int64_t n) { p.context[n] = 1 << (28 + (n == 1)); });
}

TEST(MlaCuda, ARowWithAWrongPageOrContextIsSkippedWholeAndRaisesItsFault) {
  check_faults<float>({});
  check_faults<bf16>(kRelease);
}

MlaCudaSizes release(int64_t H, int64_t page = 64) {
  MlaCudaSizes s = kRelease;
  s.H = H, s.page = page;
  return s;
}

TEST(MlaCuda, WidthsOfTheReleasesEqualTheReferenceAroundBlocksChunksAndPages) {
  for (int32_t context : {0, 1, 30, 31, 32, 63, 64, 510, 511, 512, 1100})
    for (int32_t len : {1, 2, 8}) check<bf16>(release(2), {{context, len}}, 0);
  for (int64_t page : {32, 64, 96, 256}) check<bf16>(release(3, page), {{300, 2}, {7, 1}, {95, 1}}, 0);
}

TEST(MlaCuda, WidthsOfTheReleasesEqualTheReferenceAtEveryHeadCount) {
  for (int64_t H : {1, 12, 31, 33, 66}) check<bf16>(release(H), {{100, 1}, {40, 3}, {66, 1}}, 0);
}

TEST(MlaCuda, ManyDecodeRowsBesidePrefillAndEmptyOnesEqualTheReference) {
  std::vector<PagedRow> rows{{64, 40}, {0, 5}};
  for (int i = 0; i < 90; ++i) rows.push_back({i * 37 % 400, i % 7 == 0 ? 0 : 1 + i % 3});
  for (int prefill : {0, 2}) check<bf16>(release(2), rows, prefill);
  std::vector<PagedRow> batches;  // more tokens than a round of kernels takes
  for (int i = 0; i < 300; ++i) batches.push_back({i % 40, 1 + i % 2});
  check<bf16>(release(1), batches, 0);
}

TEST(MlaCuda, LongContextsThatManyBlocksShareEqualTheReference) {
  check<bf16>(release(4), {{5000, 1}}, 0);
  check<bf16>(release(2), {{3000, 4}, {10, 1}, {2047, 1}}, 0);
}

TEST(MlaCuda, LongPrefillsEqualTheReferenceAroundTilesBlocksAndPages) {
  for (const PagedRow& row : {PagedRow{0, 128}, {0, 257}, {1, 129}, {127, 130}, {128, 128}, {500, 200}})
    check<bf16>(release(2), {row}, 1);
  check<bf16>(release(3, 16), {{31, 150}}, 1);  // pages that the absorbed form does not take
  check<bf16>(release(1, 192), {{100, 400}}, 1);
}

TEST(MlaCuda, LongPrefillsBesideShortOnesEmptyOnesAndDecodeRowsEqualTheReference) {
  MlaCudaSizes sizes = release(2);
  sizes.q_gap = 8, sizes.out_gap = 16, sizes.tail = 40;
  const std::vector<PagedRow> rows{{64, 270}, {300, 7}, {0, 0}, {0, 390}, {200, 3}, {0, 1}, {5, 0}, {130, 8}};
  for (int prefill : {4, 8}) check<bf16>(sizes, rows, prefill);
  check<bf16>(release(1), {{0, 600}, {700, 2}, {40, 1}}, 1);  // decode rows behind a round of absorbed tokens
}

TEST(MlaCuda, ALongPrefillWithAWrongPageOrContextIsSkippedWhole) {
  for (Fault fault : {Fault::page, Fault::length})
    check_mla<bf16>(release(2), {{40, 150}, {20, 250}, {7, 1}}, 2, DType::bf16, [&](MlaCudaCase<bf16>& m) {
      m.c.faults = static_cast<uint32_t>(fault);
      auto sound = std::make_shared<int32_t>();
      int32_t* broken = fault == Fault::page ? &m.p.pages[m.p.P + 3] : &m.p.context[1];
      m.c.fill = [&m, sound, broken, fault](Rng& rng) {
        m.fill(rng);
        *sound = *broken, *broken = fault == Fault::page ? 0 : 1 << 28;
      };
      m.c.reference = [&m, sound, broken](const Exec& ex, const EffectCase::At& at) {
        std::swap(*sound, *broken);
        mla(ex, m.args(at));
        std::swap(*sound, *broken);
        const int64_t row = m.p.s.H * m.p.s.value;
        std::fill_n(&m.out[m.p.cu[1] * row], (m.p.cu[2] - m.p.cu[1]) * row, bf16{});
      };
    });
}

TEST(MlaCuda, ANaNOfALaterTokenNeverReachesAnEarlierOne) {
  for (const MlaCudaSizes& sizes : {MlaCudaSizes{}, release(5)})
    for (int prefill : {0, 1})
      for (int32_t context : {20, 61})
        for (int32_t len : {7, 260}) {
          if (len > 7 && prefill == 0) continue;
          check_mla<bf16>(sizes, {{context, len}, {9, 2}}, prefill, DType::bf16, [](MlaCudaCase<bf16>& m) {
            m.c.fill = [&m](Rng& rng) {
              m.fill(rng);
              m.p.row(0, m.p.rows[0].context + m.p.rows[0].len / 2)[5] = to_bf16(NAN);
            };
          });
        }
}

TEST(MlaCuda, ARowPastTheTokensIsSkippedWholeAndRaisesItsFault) {
  for (const MlaVariant& row : mla_variants()) {
    if (machine_refusal(row, EffectCase::device_target()) != nullptr) continue;
    MlaCudaCase<float> m({}, {{40, 3}, {20, 2}}, 1, DType::f32, mla_cuda_bound<float>(row.name));
    m.c.faults = static_cast<uint32_t>(Fault::boundaries);
    int32_t end = 0;
    m.c.fill = [&](Rng& rng) {
      m.fill(rng);
      end = m.p.cu[2], m.p.cu[2] = static_cast<int32_t>(m.p.T) + 1;
    };
    m.c.reference = [&](const Exec& ex, const EffectCase::At& at) {
      std::swap(end, m.p.cu[2]);
      mla(ex, m.args(at));
      std::swap(end, m.p.cu[2]);
      std::fill_n(&m.out[m.p.cu[1] * 32], (m.p.T - m.p.cu[1]) * 32, 0.0f);
    };
    m.c.run_row("mla", row.name);
  }
}

template <class X>
struct AppendCase {
  PagedArraysOnHost<X> p;
  int64_t stride;
  Guarded<X> rows;
  EffectCase c;
  AppendCase(const MlaCudaSizes& s, std::vector<PagedRow> r, int prefill, int64_t gap)
      : p(s, std::move(r), prefill), stride(p.width + gap), rows({p.T, stride}) {
    c.array("rows", rows, {}, s.shift);
    p.add_to(c);
    c.fill = [this](Rng& rng) {
      fill_normal(rows, rng);
      std::normal_distribution<float> normal;
      p.fill(rng, [&](int64_t n, int64_t i, X* row) {
        if (i < p.rows[static_cast<size_t>(n)].context)  // this step's tokens are not there yet
          for (int64_t l = 0; l < p.width; ++l) row[l] = from_float<X>(normal(rng));
      });
    };
    c.call = [this](const Exec& ex, const EffectCase::At& at) {
      const AnyConstView all(at(rows));
      mla_append(ex, {.latent = all.columns(0, p.s.latent),
                      .rope = all.columns(p.s.latent, p.s.rope),
                      .seq = p.at(at),
                      .cache = at(p.cache)});
    };
  }
};

TEST(MlaAppendCuda, StoresEveryTokenAtItsPositionAndTouchesNothingElse) {
  const std::vector<PagedRow> rows{{64, 70}, {0, 3000}, {9, 0}, {200, 3}, {500, 1}, {0, 1}, {63, 8}};
  for (int64_t gap : {0, 3, 8})
    for (int64_t shift : {0, 1})
      for (int64_t page : {7, 64}) {
        const MlaCudaSizes s{.rope = 8, .latent = 72, .page = page, .shift = shift};
        AppendCase<bf16>(s, rows, 2, gap).c.run("mla_append", mla_append_variants());
        AppendCase<float>(s, rows, 7, gap).c.run("mla_append", mla_append_variants());
      }
  AppendCase<bf16>({.rope = 0, .latent = 33, .page = 5}, rows, 0, 0).c.run("mla_append", mla_append_variants());
}

TEST(MlaAppendCuda, ARowWithAWrongPageStoresNothingAndRaisesItsFault) {
  AppendCase<bf16> m({}, {{40, 9}, {20, 30}, {7, 1}}, 2, 0);
  m.c.faults = static_cast<uint32_t>(Fault::page);
  const auto fill = m.c.fill;
  int32_t page = 0;
  m.c.fill = [&](Rng& rng) {
    fill(rng);
    page = m.p.pages[m.p.P], m.p.pages[m.p.P] = 0;  // of the sequence's past, which this step does not store to
  };
  m.c.reference = [&](const Exec& ex, const EffectCase::At& at) {
    Guarded<bf16> before = m.p.cache;
    std::swap(page, m.p.pages[m.p.P]);
    m.c.call(ex, at);
    for (int64_t i = 0; i < m.p.rows[1].context + m.p.rows[1].len; ++i) {
      bf16* row = m.p.row(1, i);
      std::copy_n(before.data() + (row - m.p.cache.data()), m.p.width, row);
    }
    std::swap(page, m.p.pages[m.p.P]);
  };
  m.c.run("mla_append", mla_append_variants());
}

}  // namespace
}  // namespace kdelta::test
