// What CUDA source of TileLang for sm_90 calls, on a CPU: exchanges of 32 lanes, copies that are waited for in groups,
// and products of mma.sync and of wgmma.
//
// Waves have 64 lanes here: two warps, which meet together where each would alone.
#pragma once

#define __shfl_xor_sync(mask, value, apart, width) __shfl_xor(value, apart, width)

// Of both warps that meet: what a branch does beyond need changes nothing.
static inline int __any_sync(uint mask, int holds) {
  const uchar *all = rlk_meet(&holds, sizeof holds, RLK_EXCHANGE);
  int found = 0, each;
  for (int lane = 0; lane < 64; ++lane) {
    __builtin_memcpy(&each, all + lane * RLK_SLOT, sizeof each);
    found |= each != 0;
  }
  return found;
}

// PTX's: NaN loses, and -0.0 < +0.0.
static inline float rlk_extreme(float a, float b, bool less) {
  if (a != a) return b != b ? __builtin_bit_cast(float, 0x7fffffffu) : b;
  if (b != b) return a;
  uint x = __builtin_bit_cast(uint, a), y = __builtin_bit_cast(uint, b);
  if (a == b) return __builtin_bit_cast(float, less ? x | y : x & y);
  return (a < b) == less ? a : b;
}
static inline float fmaxf(float a, float b) { return rlk_extreme(a, b, false); }
static inline float fminf(float a, float b) { return rlk_extreme(a, b, true); }

typedef uint uint32_t;

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

// --- copies of threads, and products of a warpgroup ---

// What one thread has asked for, in groups: it is done as late as what waits for it allows.
template <class T, int Most> struct rlk_queue {
  T asked[Most];
  int issued, done, groups, ends[8];
  void commit() { ends[groups++ % 8] = issued; }
  template <class F> void wait(int others, F act) {
    int last = groups - others - 1;
    for (int end = last < 0 ? 0 : ends[last % 8]; done < end; ++done) act(asked[done % Most]);
  }
};

struct rlk_copy { void *to; const void *from; bool there; };
struct rlk_product { void (*act)(const rlk_product &); uint64_t a, b; float *sums; bool onto; };
static rlk_queue<rlk_copy, 256> rlk_copies[1024];
static rlk_queue<rlk_product, 32> rlk_products[1024];

static inline void rlk_begin() { rlk_copies[threadIdx.x] = {}, rlk_products[threadIdx.x] = {}; }

// Until it is waited for a copy leaves NaN: neither what was there nor what comes may be read.
template <int N> static inline void cp_async_gs_conditional(void *to, const void *from, bool there) {
  auto &mine = rlk_copies[threadIdx.x];
  __builtin_memset(to, 0xff, N);
  mine.asked[mine.issued++ % 256] = {to, from, there};
}
template <int N> static inline void cp_async_gs(void *to, const void *from) {
  cp_async_gs_conditional<N>(to, from, true);
}
static inline void cp_async_commit() { rlk_copies[threadIdx.x].commit(); }
template <int N> static inline void cp_async_wait() {
  rlk_copies[threadIdx.x].wait(N, [](const rlk_copy &c) {
    c.there ? __builtin_memcpy(c.to, c.from, 16) : __builtin_memset(c.to, 0, 16);
  });
}

struct GmmaDescriptor {
  const uchar *first;
  GmmaDescriptor operator+(int sixteens) const { return {first + 16 * sixteens}; }
  explicit operator uint64_t() const { return (uint64_t)first; }
};
template <int Swizzle, int Leading, int Stride, class T>
static inline void initialize_wgmma_descriptor(GmmaDescriptor &made, T *first) {
  static_assert(Swizzle == 1 && Stride == 64, "rows of 128 bytes, eight of them after one another");
  made.first = (const uchar *)first;
}
static inline void fence_proxy_async() {}
static inline void warpgroup_arrive() {}
static inline void warpgroup_commit_batch() { rlk_products[threadIdx.x].commit(); }
template <class T> static inline void warpgroup_fence_operand(T *, int) {}
template <int N> static inline void wait_wgmma() {
  rlk_products[threadIdx.x].wait(N, [](const rlk_product &p) { p.act(p); });
}

// Element k of a row: vectors of 16 bytes are exchanged by bits 7 to 9 of their address (PTX 9.7.15.5.1).
template <DataType A> static inline float rlk_swizzled(uint64_t first, int row, int k) {
  uint64_t at = first + 128 * row + 2 * k;
  ushort bits;
  __builtin_memcpy(&bits, (const void *)(at ^ (at >> 7 & 7) << 4), 2);
  return A == DataType::kBFloat16 ? __builtin_bit_cast(float, (uint)bits << 16)
                                  : (float)__builtin_bit_cast(half_t, bits);
}

// wgmma.m64nNk16: warp w, lane l has rows 16 * w + l / 4 and that + 8, of columns 8 * b + 2 * (l % 4) and the next
// (PTX 9.7.15.5.1).
template <DataType A, int N> static inline void rlk_wgmma(const rlk_product &p) {
  int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  float x[2][16], y[16];
  for (int k = 0; k < 32; ++k) x[k / 16][k % 16] = rlk_swizzled<A>(p.a, 16 * warp + lane / 4 + k / 16 * 8, k % 16);
  for (int at = 0; at < N / 4; ++at) {
    for (int k = 0; k < 16; ++k) y[k] = rlk_swizzled<A>(p.b, 8 * (at / 2) + 2 * (lane % 4) + at % 2, k);
    for (int half = 0; half < 2; ++half) {
      float &sum = p.sums[at / 2 * 4 + half * 2 + at % 2];
      sum = rlk_chain16(x[half], y, p.onto ? sum : 0, A == DataType::kBFloat16 ? -126 : -14);
    }
  }
}
template <DataType A, DataType B, DataType C, int M, int N, int K, bool OfA, bool OfB, int ScaleA, int ScaleB>
static inline void wgmma_ss(uint64_t a, uint64_t b, uint *sums, bool onto) {
  static_assert(A == B && C == DataType::kFloat32 && M == 64 && K == 16 && !OfA && !OfB, "another product");
  auto &mine = rlk_products[threadIdx.x];
  mine.asked[mine.issued++ % 32] = {rlk_wgmma<A, N>, a, b, (float *)sums, onto};
}

}  // namespace tl
