// The CPU's side of kernel.h: work-items are fibers, and what a wave does together is a meeting of 64 of them.
#pragma once

#define __host__
#define __device__
#define __global__
#define __launch_bounds__(threads)
#define __shared__ static __attribute__((section("rlk_shared")))  // one workgroup runs at a time

struct rlk_index { uint x, y, z; };
extern rlk_index threadIdx, blockIdx;

enum { RLK_SLOT = 32 };  // bytes that a lane may bring to a meeting
enum rlk_meeting { RLK_EXCHANGE = 1, RLK_PRODUCT = 2 };

extern "C" {
void __syncthreads() __attribute__((convergent, noduplicate));  // one place in the code is one barrier
int rlk_lane();
// Leave some bytes, wait for the other lanes of the wave, and return what all left, RLK_SLOT bytes apart.
const uchar *rlk_meet(const void *bytes, uint count, rlk_meeting meeting);
}

template <class T> static inline T rlk_of_lane(T value, int lane) {
  static_assert(sizeof(T) <= RLK_SLOT, "more than a lane may bring");
  T found;
  __builtin_memcpy(&found, rlk_meet(&value, sizeof value, RLK_EXCHANGE) + (lane & 63) * RLK_SLOT, sizeof found);
  return found;
}

static inline void AtomicMax(int *word, int value, int order) {
  if (*word < value) *word = value;
}

// --- matrix instructions ---

// Of a 16 x 16 product, lane l brings elements KB * (l / 16) + e of row l % 16 of A and of column l % 16 of B,
// and has rows 4 * (l / 16) + r of column l % 16 of the result (CDNA3 instruction set, 7.1). `group` adds what
// so many products contribute to an accumulator; it is called with ascending k.
template <class Element, int KB, class Factors, class Result>
static inline Result rlk_product(Factors a, Factors b, Result c, float (*group)(const Element *, const Element *, float)) {
  struct given { Factors a, b; } mine = {a, b};
  static_assert(sizeof mine <= RLK_SLOT, "more than a lane may bring");
  const uchar *all = rlk_meet(&mine, sizeof mine, RLK_PRODUCT);
  int lane = rlk_lane();
  for (int r = 0; r < 4; ++r) {
    Element x[4 * KB], y[4 * KB];
    for (int block = 0; block < 4; ++block) {
      int row = 16 * block + 4 * (lane / 16) + r, column = 16 * block + lane % 16;
      __builtin_memcpy(x + KB * block, all + row * RLK_SLOT, KB * sizeof(Element));
      __builtin_memcpy(y + KB * block, all + column * RLK_SLOT + sizeof(Factors), KB * sizeof(Element));
    }
    c[r] = group(x, y, c[r]);
  }
  return c;
}

// f32: a chain of fma in ascending k (MMA-Sim, arXiv 2511.10909).
static inline float rlk_chain(const float *x, const float *y, float c) {
  for (int k = 0; k < 4; ++k) c = __builtin_fmaf(x[k], y[k], c);
  return c;
}
template <class Result> static inline Result rlk_f32(float a, float b, Result c, int, int, int) {
  return rlk_product<float, 1, float>(a, b, c, rlk_chain);
}
#define __builtin_amdgcn_mfma_f32_16x16x4f32 rlk_f32
