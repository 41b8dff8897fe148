// Warpgroup products of Hopper (sm_90a): d (64 x N, fp32) += a (64 x 16, bf16) b (16 x N, bf16). a lies in shared
// memory or in registers, b in shared memory, both with their 16 columns side by side in tiles of 128-byte rows,
// swizzled as the tensor copies write them.
#pragma once

#include <cstdint>

namespace kdelta::cuda {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// All but the last kPending committed groups are done.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Behind wgmma_wait<0>: no use of d is moved in front of it.
template <int kCount>
__device__ __forceinline__ void wgmma_done(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// A tile of rows of 128 bytes that begins at a multiple of 1,024 (address in shared memory); 16 columns on are 2 more.
__device__ __forceinline__ uint64_t wgmma_tile(uint32_t address) {
  return uint64_t{address >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// The same of a b whose 16 rows of N columns lie one below the other, as tiles of 64 columns that begin `apart` bytes
// apart; 16 rows on are 128 more.
__device__ __forceinline__ uint64_t wgmma_rows(uint32_t address, uint32_t apart) {
  return uint64_t{address >> 4} | uint64_t{apart >> 4} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// add false: d = a b. kRows: b is as wgmma_rows() says.
template <int N>
struct Wgmma;

#define KDELTA_D8(i)                                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define KDELTA_D32(i) KDELTA_D8(i), KDELTA_D8(i + 8), KDELTA_D8(i + 16), KDELTA_D8(i + 24)

template <>
struct Wgmma<32> {
  __device__ static __forceinline__ void shared(float (&d)[16], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0;"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
        "}, %16, %17, p, 1, 1, 0, 0;}"
        : KDELTA_D8(0), KDELTA_D8(8)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
  __device__ static __forceinline__ void registers(float (&d)[16], const uint32_t (&a)[4], uint64_t b, bool add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %21, 0;"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
        "}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;}"
        : KDELTA_D8(0), KDELTA_D8(8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
  }
};

template <>
struct Wgmma<64> {
  __device__ static __forceinline__ void shared(float (&d)[32], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, %32, %33, p, 1, 1, 0, 0;}"
        : KDELTA_D32(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
  __device__ static __forceinline__ void registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b, bool add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %37, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
        : KDELTA_D32(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
  }
};

template <>
struct Wgmma<128> {
  __device__ static __forceinline__ void shared(float (&d)[64], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, %64, %65, p, 1, 1, 0, 0;}"
        : KDELTA_D32(0), KDELTA_D32(32)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
  template <bool kRows = false>
  __device__ static __forceinline__ void registers(float (&d)[64], const uint32_t (&a)[4], uint64_t b, bool add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %69, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, {%64,%65,%66,%67}, %68, p, 1, 1, %70;}"
        : KDELTA_D32(0), KDELTA_D32(32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(kRows ? 1 : 0));
  }
};

template <>
struct Wgmma<256> {
  __device__ static __forceinline__ void shared(float (&d)[128], uint64_t a, uint64_t b, bool add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %130, 0;"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
        "}, %128, %129, p, 1, 1, 0, 0;}"
        : KDELTA_D32(0), KDELTA_D32(32), KDELTA_D32(64), KDELTA_D32(96)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
  __device__ static __forceinline__ void registers(float (&d)[128], const uint32_t (&a)[4], uint64_t b, bool add) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %133, 0;"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
        "}, {%128,%129,%130,%131}, %132, p, 1, 1, 0;}"
        : KDELTA_D32(0), KDELTA_D32(32), KDELTA_D32(64), KDELTA_D32(96)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
  }
};

// d = a b of 32 columns, both E4M3, side by side in such tiles of 128-byte rows: 32 columns on are 2 more. The sum of a
// product is not one of fp32: about 14 bits below its largest term are kept.
template <int N>
struct WgmmaE4m3;

template <>
struct WgmmaE4m3<64> {
  __device__ static __forceinline__ void shared(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 0, 0;"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, %32, %33, p, 1, 1;}"
        : KDELTA_D32(0)
        : "l"(a), "l"(b));
  }
};

template <>
struct WgmmaE4m3<128> {
  __device__ static __forceinline__ void shared(float (&d)[64], uint64_t a, uint64_t b) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, 0, 0;"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, %64, %65, p, 1, 1;}"
        : KDELTA_D32(0), KDELTA_D32(32)
        : "l"(a), "l"(b));
  }
};

#undef KDELTA_D8
#undef KDELTA_D32

}  // namespace kdelta::cuda
