// The CPU's side of kernel.h: work-items are fibers, and what a wave does together is a meeting of 64 of them.
#pragma once

#define __host__
#define __device__
#define __global__
#define __launch_bounds__(...)
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
