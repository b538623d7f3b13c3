// In which order the work-items of a workgroup run on a CPU: fibers, until they must wait for one another.
//
// Workgroups run one after the other. A work-item runs until its wave meets (a shuffle, a matrix product) or its
// workgroup does (a barrier). Who runs next is the schedule's: 0 in order; even ones a random order each turn; odd
// ones one wave as far as it can go, which finds barriers that only order reads before writes.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { WAVE = 64, SLOT = 32, MOST_THREADS = 1024, MOST_WAVES = MOST_THREADS / WAVE, STACK = 128 * 1024 };

struct index { unsigned x, y, z; };
struct index threadIdx, blockIdx;

// Those who meet: how many there are, how many have come, and how often all have.
struct circle {
  int members, arrived;
  uint64_t meetings;
};

struct wave {
  struct circle circle;
  int kind;                              // of the meeting that is under way
  unsigned char slots[2][WAVE * SLOT];   // of this meeting, and of the last one, which some still read
};

struct fiber {
  ucontext_t context;
  char *stack;
  struct circle *waits;  // null while it can run
  uint64_t since;        // the meeting that it waits for
  int done;
};

static struct fiber fibers[MOST_THREADS];
static struct wave waves[MOST_WAVES];
static struct circle group;
static ucontext_t scheduler;
static int running, threads;
static void (*body)(void **);
static void **arguments;
static const char *failure;
static uint64_t state;

static unsigned below(unsigned count) {  // xorshift64* (Vigna 2016)
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  return (unsigned)(state * 0x2545F4914F6CDD1DULL >> 33) % count;
}

static void shuffle(int *order, int count) {
  for (int i = count - 1; i > 0; --i) {
    int j = below(i + 1), other = order[i];
    order[i] = order[j], order[j] = other;
  }
}

// --- meetings ---

static void release(struct circle *circle) {
  if (circle->members && circle->arrived == circle->members) circle->arrived = 0, ++circle->meetings;
}

static void wait_for(struct circle *circle) {
  struct fiber *me = &fibers[running];
  me->since = circle->meetings;
  ++circle->arrived;
  release(circle);
  if (circle->meetings != me->since) return;
  me->waits = circle;
  swapcontext(&me->context, &scheduler);
  me->waits = NULL;
}

void __syncthreads(void) {
  static const void *place;  // the barrier that work-items come to
  const void *here = __builtin_return_address(0);
  if (group.arrived && place != here) failure = "work-items meet at different barriers";
  place = here;
  wait_for(&group);
}

int rlk_lane(void) { return running % WAVE; }

const unsigned char *rlk_meet(const void *bytes, unsigned count, int kind) {
  struct wave *wave = &waves[running / WAVE];
  if (wave->circle.arrived && wave->kind != kind) failure = "lanes of a wave meet for different ends";
  wave->kind = kind;
  unsigned char *slots = wave->slots[wave->circle.meetings % 2];
  memcpy(slots + rlk_lane() * SLOT, bytes, count);
  wait_for(&wave->circle);
  return slots;
}

// --- turns ---

static void enter(void) {
  body(arguments);
  struct wave *wave = &waves[running / WAVE];
  fibers[running].done = 1;
  --wave->circle.members, release(&wave->circle);
  --group.members, release(&group);
  swapcontext(&fibers[running].context, &scheduler);
}

static int can_run(const struct fiber *f) {
  return !f->done && (!f->waits || f->waits->meetings != f->since);
}

// Run the fibers of a list that can go on; return whether one could.
static int turn(const int *order, int wave) {
  int moved = 0;
  for (int i = 0; i < threads && !failure; ++i) {
    int t = order[i];
    if ((wave >= 0 && t / WAVE != wave) || !can_run(&fibers[t])) continue;
    running = t, threadIdx.x = t, moved = 1;
    swapcontext(&scheduler, &fibers[t].context);
  }
  return moved;
}

static void start(void) {
  memset(waves, 0, sizeof waves);
  group = (struct circle){.members = threads};
  for (int t = 0; t < threads; ++t) {
    struct fiber *f = &fibers[t];
    if (!f->stack) f->stack = malloc(STACK);
    f->waits = NULL, f->done = 0;
    ++waves[t / WAVE].circle.members;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, enter, 0);
  }
}

static void run_group(int schedule) {
  int order[MOST_THREADS], first[MOST_WAVES], count = (threads + WAVE - 1) / WAVE;
  for (int t = 0; t < threads; ++t) order[t] = t;
  for (int w = 0; w < count; ++w) first[w] = w;
  if (schedule % 2) shuffle(first, count);
  start();
  while (group.members && !failure) {
    int moved = 0;
    if (schedule) shuffle(order, threads);
    for (int w = 0; schedule % 2 && w < count; ++w)
      while (turn(order, first[w])) moved = 1;
    if (schedule % 2 == 0) moved = turn(order, -1);
    if (!moved && !failure) failure = "work-items wait for a meeting that some of them never come to";
  }
}

// Run a kernel for every workgroup; return what went wrong, or null. shared: what `__shared__` variables fill.
const char *rlk_launch(void (*kernel)(void **), void **given, int groups, int items, int schedule, void *shared,
                       size_t bytes) {
  if (items > MOST_THREADS) return "more work-items than a workgroup may have";
  body = kernel, arguments = given, threads = items, failure = NULL, state = 2 * schedule + 1;
  for (int g = 0; g < groups && !failure; ++g) {
    memset(shared, 0xff, bytes);  // NaN as a float: what is read before it is written spoils the result
    blockIdx.x = g;
    run_group(schedule);
  }
  return failure;
}
