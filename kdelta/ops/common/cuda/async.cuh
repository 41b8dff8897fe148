// Copies into shared memory that a kernel does not wait for: of 16 bytes a thread (sm_80), and in bulk (sm_90), where
// one thread asks for bytes and everyone waits for a barrier's phase.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace kdelta::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes of a line that somebody copies whole.
__device__ __forceinline__ void copy16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
// With the 128 bytes around them asked of the L2.
__device__ __forceinline__ void copy16_of_line(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}
// Through the L1, which keeps what lies beside them.
__device__ __forceinline__ void copy4(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}
// Zeros when `bytes` is 0.
__device__ __forceinline__ void copy16(uint32_t to_shared, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copies_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// All but the last kPending committed groups of this thread are here.
template <int kPending>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// All of this thread's are, committed or not.
__device__ __forceinline__ void copies_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

#if __CUDA_ARCH__ >= 900 || !defined(__CUDA_ARCH__)

// A barrier is eight bytes of shared memory, given as a pointer or by its address. One thread makes it; then
// fence_barrier_init() and a block barrier before anybody uses it.
__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  barrier_init(shared_address(barrier), arrivals);
}
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives and announces bytes that copies will bring in this phase.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  barrier_expect(shared_address(barrier), bytes);
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  barrier_arrive(shared_address(barrier));
}
// Until the phase of that parity (0 first) is complete.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra again;\n"
      "end:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  barrier_wait(shared_address(barrier), parity);
}

// `bytes` (a multiple of 16) from global memory; both addresses 16-byte aligned. Completes on the barrier.
__device__ __forceinline__ void bulk_load(uint32_t to_shared, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void bulk_load(void* to_shared, const void* from, uint32_t bytes, uint64_t* barrier) {
  bulk_load(shared_address(to_shared), from, bytes, shared_address(barrier));
}
// Asks the L2 for memory that begins and ends at 16 bytes.
__device__ __forceinline__ void bulk_prefetch(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// Shared memory written by ordinary stores is handed to bulk_store, or to wgmma: each writer fences, then a block
// barrier, then one thread stores, commits, and waits before the memory is written again.
__device__ __forceinline__ void fence_shared_for_bulk() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The same for global memory too.
__device__ __forceinline__ void fence_memory_for_bulk() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void bulk_store(void* to, uint32_t from_shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from_shared), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, const void* from_shared, uint32_t bytes) {
  bulk_store(to, shared_address(from_shared), bytes);
}
__device__ __forceinline__ void bulk_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until at most kPending committed groups still read shared memory; their destination may still lack them.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Until at most kPending committed groups are not yet written.
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif

}  // namespace kdelta::cuda
