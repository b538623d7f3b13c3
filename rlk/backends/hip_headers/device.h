// The device's side of kernel.h: work-items, the barrier and lanes of a wave as clang's builtins for amdgcn.
#pragma once

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#define RLK_DEVICE static __inline__ __attribute__((always_inline)) __device__

#define RLK_COORDINATE(of)                                                                  \
  struct rlk_##of {                                                                         \
    __declspec(property(get = get_x)) uint x;                                               \
    __device__ __attribute__((always_inline)) uint get_x() const { return __builtin_amdgcn_##of##_id_x(); } \
  }
RLK_COORDINATE(workitem);
RLK_COORDINATE(workgroup);
extern const __device__ __attribute__((weak)) rlk_workitem threadIdx;
extern const __device__ __attribute__((weak)) rlk_workgroup blockIdx;

RLK_DEVICE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

RLK_DEVICE int rlk_lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }

template <class T> RLK_DEVICE T rlk_of_lane(T value, int lane) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "lanes exchange words");
  if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(lane << 2, __builtin_bit_cast(int, value)));
  } else {
    struct words { int low, high; } given = __builtin_bit_cast(words, value);
    words found = {__builtin_amdgcn_ds_bpermute(lane << 2, given.low),
                   __builtin_amdgcn_ds_bpermute(lane << 2, given.high)};
    return __builtin_bit_cast(T, found);
  }
}

RLK_DEVICE void AtomicMax(int *word, int value, int order) {
  __hip_atomic_fetch_max(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
