// What stands for the HIP runtime where there is none: memory of the host, and launches that a function takes.
//
// TileLang's launcher opens libamdhip64.so and calls what is here. A kernel is not run: `rlk_on_launch` names the
// function that is told of it, with the code object, the sizes, and the arguments: their bytes as they were packed, or
// (length -1) the addresses of each.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int status;
enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, LAUNCH_FAILED = 719, NOT_FOUND = 500 };
enum { ARGUMENTS = 1, SIZE = 2, END = 3 };  // HIP_LAUNCH_PARAM_*

typedef struct { const uint8_t *image; size_t size; } module;
typedef struct { const module *of; char name[512]; } function;
typedef struct { uint8_t *start; size_t size; } allocation;
typedef status (*taker)(const char *name, const uint8_t *image, size_t size, const unsigned *sizes,
                        const void *arguments, long length);

enum { MOST = 1 << 16 };
static allocation held[MOST];
static int used;
static taker take;

void rlk_on_launch(taker given) { take = given; }

// Find the allocation that an address lies in, its end included: a tensor without elements starts there.
int rlk_allocation(uint64_t at, uint64_t *start, uint64_t *size) {
  for (int i = 0; i < used; ++i) {
    uint64_t from = (uint64_t)held[i].start;
    if (from && at >= from && at <= from + held[i].size) return *start = from, *size = held[i].size, 1;
  }
  return 0;
}

// --- the device ---

const char *hipGetErrorString(status s) { return s ? "the stand-in for HIP refused" : "success"; }
const char *hipGetErrorName(status s) { return s ? "hipErrorStandIn" : "hipSuccess"; }
status hipGetLastError(void) { return SUCCESS; }
#define DOES_NOTHING(name, ...) status name(__VA_ARGS__) { return SUCCESS; }
DOES_NOTHING(hipInit, unsigned flags)
DOES_NOTHING(hsa_init, void)
DOES_NOTHING(hsa_shut_down, void)
status hipSetDevice(int device) { return device ? INVALID : SUCCESS; }
status hipGetDevice(int *device) { return *device = 0, SUCCESS; }
status hipGetDeviceCount(int *count) { return *count = 1, SUCCESS; }
status hipDeviceGetAttribute(int *value, int which, int device) { return *value = 64, SUCCESS; }
status hipDeviceGetName(char *name, int length, int device) { return strncpy(name, "emulated", length), SUCCESS; }
status hipGetDevicePropertiesR0600(void *given, int device) { return memset(given, 0, 256), SUCCESS; }

// --- memory ---

status hipMalloc(void **to, size_t size) {
  if (used == MOST || !(*to = aligned_alloc(256, (size + 511) & ~(size_t)255))) return OUT_OF_MEMORY;
  held[used++] = (allocation){*to, size};
  return SUCCESS;
}
status hipFree(void *given) {
  for (int i = 0; i < used; ++i)
    if (held[i].start == given) held[i] = held[--used];
  free(given);
  return SUCCESS;
}
status hipHostMalloc(void **to, size_t size, unsigned flags) { return (*to = malloc(size)) ? SUCCESS : OUT_OF_MEMORY; }
status hipHostFree(void *given) { return free(given), SUCCESS; }
status hipMemcpy(void *to, const void *from, size_t size) { return memcpy(to, from, size), SUCCESS; }
status hipMemcpyAsync(void *to, const void *from, size_t size) { return memcpy(to, from, size), SUCCESS; }
status hipMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t size, void *stream) {
  return memcpy(to, from, size), SUCCESS;
}

// --- order: everything is done when its call returns ---

status hipStreamCreate(void **stream) { return *stream = 0, SUCCESS; }
status hipEventCreate(void **event) { return *event = 0, SUCCESS; }
status hipEventElapsedTime(float *time, void *from, void *to) { return *time = 0, SUCCESS; }
DOES_NOTHING(hipStreamDestroy, void *stream)
DOES_NOTHING(hipStreamSynchronize, void *stream)
DOES_NOTHING(hipEventDestroy, void *event)
DOES_NOTHING(hipEventRecord, void *event, void *stream)
DOES_NOTHING(hipEventSynchronize, void *event)

// --- kernels ---

// The size of an ELF file without one given: its table of sections is the last thing in it.
static size_t end_of(const uint8_t *image) {
  uint64_t table;
  uint16_t size, count;
  memcpy(&table, image + 40, 8);
  memcpy(&size, image + 58, 2);
  memcpy(&count, image + 60, 2);
  return table + (size_t)size * count;
}
status hipModuleLoadData(void **to, const void *image) {
  module *made = malloc(sizeof *made);
  uint8_t *copy = malloc(end_of(image));
  if (!made || !copy) return OUT_OF_MEMORY;
  *made = (module){memcpy(copy, image, end_of(image)), end_of(image)};
  return *to = made, SUCCESS;
}
DOES_NOTHING(hipModuleUnload, void *given)
status hipModuleGetFunction(void **to, void *of, const char *name) {
  function *made = calloc(1, sizeof *made);
  if (!made) return OUT_OF_MEMORY;
  made->of = of;
  strncpy(made->name, name, sizeof made->name - 1);
  return *to = made, SUCCESS;
}
status hipModuleGetGlobal(void **to, size_t *size, void *of, const char *name) { return NOT_FOUND; }

status hipModuleLaunchKernel(void *what, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, void *stream, void **one_by_one, void **packed) {
  const function *launched = what;
  const void *arguments = one_by_one;
  long length = -1;
  if (!take || !one_by_one == !packed) return INVALID;
  for (int i = 0; packed && (uintptr_t)packed[i] != END; i += 2) {
    if ((uintptr_t)packed[i] == ARGUMENTS) arguments = packed[i + 1];
    if ((uintptr_t)packed[i] == SIZE) length = *(size_t *)packed[i + 1];
  }
  unsigned sizes[7] = {gx, gy, gz, bx, by, bz, shared};
  return take(launched->name, launched->of->image, launched->of->size, sizes, arguments, length);
}
status hipModuleLaunchCooperativeKernel(void) { return INVALID; }
