// What CUDA source of TileLang for sm_90 calls, on a CPU: exchanges of 32 lanes, and products of mma.sync.
//
// Waves have 64 lanes here: two warps, which meet together where each would alone.
#pragma once

#define __shfl_xor_sync(mask, value, apart, width) __shfl_xor(value, apart, width)

namespace tl {

enum class DataType { kBFloat16, kFloat16, kFloat32 };

// ldmatrix.x4: lane l brings the address of row l % 8 of matrix l / 8, and gets elements 2 * (l % 4) and the next of
// row l / 4 of each (PTX 9.7.14.5.15).
static inline void ptx_ldmatrix_x4(const void *row, void *to) {
  const uchar *all = rlk_meet(&row, sizeof row, RLK_EXCHANGE);
  int warp = rlk_lane() & 32, lane = rlk_lane() & 31;
  for (int matrix = 0; matrix < 4; ++matrix) {
    const uchar *from;
    __builtin_memcpy(&from, all + (warp + 8 * matrix + lane / 4) * RLK_SLOT, sizeof from);
    __builtin_memcpy((uchar *)to + 4 * matrix, from + 4 * (lane % 4), 4);
  }
}

// Of what a term's size is said: an exponent of a factor or of c, no less than that of the least normal number.
static inline int rlk_size(float x, int least) {
  int found = (int)(__builtin_bit_cast(uint, x) >> 23 & 255u) - 127;
  return found < least ? least : found;
}

// chain16 (rlk/ir/dotmodel.py; MMA-Sim, arXiv 2511.10909): 16 products and c, cut to 25 bits below the largest, are
// added exactly and rounded toward zero.
static inline float rlk_chain16(const float *x, const float *y, float c, int least) {
  double plain = c;
  int top = -133;
  for (int k = 0; k < 16; ++k) {
    plain += (double)x[k] * y[k];
    int size = rlk_size(x[k], least) + rlk_size(y[k], least);
    if (x[k] != 0 && y[k] != 0 && size > top) top = size;
  }
  if (plain != plain || plain - plain != 0) return (float)plain;
  if (c != 0 && rlk_size(c, -126) > top) top = rlk_size(c, -126);
  double sum = __builtin_trunc(__builtin_ldexp((double)c, 25 - top));
  for (int k = 0; k < 16; ++k) sum += __builtin_trunc(__builtin_ldexp((double)x[k] * y[k], 25 - top));
  double exact = __builtin_ldexp(sum, top - 25);
  if (exact == 0) return 0;
  float near = (float)exact;  // to nearest: one step back where that went away from zero
  uint bits = __builtin_bit_cast(uint, near);
  bool away = __builtin_fabs((double)near) > __builtin_fabs(exact) && __builtin_fabs(exact) < 0x1p128;
  near = __builtin_bit_cast(float, away ? bits - 1 : bits);
  return near == 0 ? 0 : near;
}

// mma.sync.m16n8k16: lane l has of A rows l / 4 and that + 8 at k = 2 * (l % 4) and that + 8, of B column l / 4 at the
// same k, of the result columns 2 * (l % 4) and the next (PTX 9.7.14.5.8); two elements a register.
template <DataType A, DataType B, DataType C, int M, int N, int K, bool OfA, bool OfB>
static inline void mma_sync(float *c, const uint *a, const uint *b) {
  static_assert(A == B && C == DataType::kFloat32 && M == 16 && N == 8 && K == 16 && !OfA && OfB, "another product");
  struct given { uint a[4], b[2]; } mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const uchar *all = rlk_meet(&mine, sizeof mine, RLK_PRODUCT);
  int warp = rlk_lane() & 32, lane = rlk_lane() & 31;
  for (int r = 0; r < 4; ++r) {
    int row = lane / 4, column = 2 * (lane % 4) + r % 2, lower = r / 2;
    float x[16], y[16];
    for (int k = 0; k < 16; ++k) {
      given of_row, of_column;
      __builtin_memcpy(&of_row, all + (warp + 4 * row + k / 2 % 4) * RLK_SLOT, sizeof of_row);
      __builtin_memcpy(&of_column, all + (warp + 4 * column + k / 2 % 4) * RLK_SLOT, sizeof of_column);
      uint one = of_row.a[lower + 2 * (k / 8)] >> 16 * (k % 2) & 0xffff;
      uint two = of_column.b[k / 8] >> 16 * (k % 2) & 0xffff;
      if (A == DataType::kBFloat16) {
        x[k] = __builtin_bit_cast(float, one << 16), y[k] = __builtin_bit_cast(float, two << 16);
      } else {
        x[k] = (float)__builtin_bit_cast(half_t, (ushort)one), y[k] = (float)__builtin_bit_cast(half_t, (ushort)two);
      }
    }
    c[r] = rlk_chain16(x, y, c[r], A == DataType::kBFloat16 ? -126 : -14);
  }
}

}  // namespace tl
