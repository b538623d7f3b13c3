// What a HIP kernel written by TileLang for rlk may use, in the place of ROCm's headers and TileLang's templates.
//
// Two readers: clang for amdgcn, which turns builtins into instructions, and clang for a CPU (RLK_HOST), where
// work-items are the fibers of fibers.c. A name that is not here is a compile error: rlk's kernels use none.
#pragma once

typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;

#ifdef RLK_HOST
#include "host.h"
#else
#include "device.h"
#endif

#define __align__(bytes) __attribute__((aligned(bytes)))
#define RLK_BOTH static __inline__ __attribute__((always_inline)) __host__ __device__

// --- types ---

typedef _Float16 half_t;

// ROCm's hip_bfloat16: rounds to nearest, ties to even; a NaN stays one.
struct bfloat16_t {
  ushort data;
  bfloat16_t() = default;
  __host__ __device__ explicit bfloat16_t(float x) {
    uint bits = __builtin_bit_cast(uint, x);
    if (~bits & 0x7f800000u)
      bits += 0x7fffu + (bits >> 16 & 1u);
    else if (bits & 0xffffu)
      bits |= 0x10000u;
    data = (ushort)(bits >> 16);
  }
  __host__ __device__ operator float() const { return __builtin_bit_cast(float, (uint)data << 16); }
};

struct __align__(8) uint2 { uint x, y; };
struct __align__(16) uint4 { uint x, y, z, w; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) int2 { int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
RLK_BOTH float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }

typedef short bfloat16x4_vec __attribute__((__vector_size__(8)));
typedef half_t float16x4 __attribute__((__vector_size__(8)));
typedef float float32x4 __attribute__((__vector_size__(16)));

#ifdef RLK_HOST
#include "matrix.h"
#endif

// --- arithmetic ---

RLK_BOTH float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
RLK_BOTH float sqrtf(float x) { return __builtin_sqrtf(x); }
RLK_BOTH float floorf(float x) { return __builtin_floorf(x); }
RLK_BOTH int max(int a, int b) { return a > b ? a : b; }
RLK_BOTH int min(int a, int b) { return a < b ? a : b; }
RLK_BOTH int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
RLK_BOTH int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
RLK_BOTH uint max(uint a, uint b) { return a > b ? a : b; }
RLK_BOTH uint min(uint a, uint b) { return a < b ? a : b; }

// --- exchanges ---

// HIP's: lanes of a group of `width` exchange; one whose partner lies outside of the group keeps its own value.
template <class T> RLK_BOTH T __shfl_xor(T value, int apart, int width = 64) {
  int lane = rlk_lane(), other = lane ^ apart;
  return rlk_of_lane(value, other >= ((lane + width) & ~(width - 1)) ? lane : other);
}
