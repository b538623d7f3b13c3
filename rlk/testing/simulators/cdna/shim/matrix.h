// What a matrix instruction computes on a CPU: which lane brings which factors, and in which order they are added.
#pragma once

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

// 16-bit factors on CDNA3, as MMA-Sim (arXiv 2511.10909) has them: groups of 8 in ascending k. Products are cut
// toward zero to 24 bits below the largest exponent of the group; their sum is rounded down to 31 bits, c to 24 bits
// below the larger exponent of both; what they make together is rounded to nearest even.
static inline int rlk_exponent(float x, int least) {
  if (x == 0) return -126;
  int found = (int)(__builtin_bit_cast(uint, x) >> 23 & 255u) - 127;
  return found < least ? least : found;
}

static inline float rlk_group_of_eight(const float *x, const float *y, float c, int least) {
  double plain = c;
  int top = -1000;
  for (int k = 0; k < 8; ++k) {
    plain += (double)x[k] * y[k];
    int exponent = rlk_exponent(x[k], least) + rlk_exponent(y[k], least);
    top = exponent > top ? exponent : top;
  }
  if (plain != plain || plain - plain != 0) return (float)plain;
  double sum = 0;
  for (int k = 0; k < 8; ++k) sum += __builtin_trunc(__builtin_ldexp((double)x[k] * y[k], 24 - top));
  int of_c = rlk_exponent(c, -126), both = of_c > top ? of_c : top;
  double low = __builtin_floor(__builtin_ldexp(sum, top - both + 7));
  double high = __builtin_floor(__builtin_ldexp((double)c, 24 - both));
  return (float)__builtin_ldexp(low + __builtin_ldexp(high, 7), both - 31);
}

// least: of the exponent of a number of the type that is not zero
template <class Element, int least> static inline float rlk_groups(const Element *x, const Element *y, float c) {
  float a[16], b[16];
  for (int k = 0; k < 16; ++k) a[k] = (float)x[k], b[k] = (float)y[k];
  return rlk_group_of_eight(a + 8, b + 8, rlk_group_of_eight(a, b, c, least), least);
}

template <class Result> static inline Result rlk_f32(float a, float b, Result c, int, int, int) {
  return rlk_product<float, 1, float>(a, b, c, rlk_chain);
}
#define __builtin_amdgcn_mfma_f32_16x16x4f32 rlk_f32

#ifdef RLK_CDNA3
template <class Factors, class Result> static inline Result rlk_bf16(Factors a, Factors b, Result c, int, int, int) {
  return rlk_product<bfloat16_t, 4, Factors>(a, b, c, rlk_groups<bfloat16_t, -126>);
}
template <class Factors, class Result> static inline Result rlk_f16(Factors a, Factors b, Result c, int, int, int) {
  return rlk_product<half_t, 4, Factors>(a, b, c, rlk_groups<half_t, -14>);
}
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k rlk_bf16
#define __builtin_amdgcn_mfma_f32_16x16x16f16 rlk_f16
#endif
