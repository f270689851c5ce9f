/* A CUDA driver that pretends: device memory is host memory, kernels are the few below, time is counted, not measured.
 *
 * A kernel's name says what it does and, after the last underscore, how many pointers it takes. "Cubins" are any bytes that
 * begin like an ELF file. The device has 1 KiB of L2, so that rotations through it are short. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, NO_DEVICE = 100, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };
#ifndef DEVICES
#define DEVICES 2
#endif
#define MAX_NODES 100000

typedef uint64_t ptr;
typedef struct { char name[64]; int params, max_dynamic; } function;
typedef struct { function *f; unsigned grid[3], block[3], shared; ptr args[8], map[5]; } node;
typedef struct { int count; node *nodes; } graph;
typedef struct { graph *capturing; } stream;
typedef struct { double at; } event;

static double now_us;      /* the device's clock */
static int sticky;         /* the error that every later call returns */
static ptr last_read, first_read;

int cuInit(unsigned flags) { return DEVICES ? OK : NO_DEVICE; }
int cuDriverGetVersion(int *v) { *v = 13000; return OK; }
int cuGetErrorName(int e, const char **s) {
    *s = e == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : e == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : e == INVALID ? "CUDA_ERROR_INVALID_VALUE" : 0;
    return *s ? OK : INVALID;
}
int cuDeviceGetCount(int *n) { *n = DEVICES; return OK; }
int cuDeviceGet(int *d, int i) { *d = i; return i < DEVICES ? OK : INVALID; }
int cuDeviceGetName(char *s, int n, int d) { strncpy(s, "Fake GPU", n); return OK; }
int cuDeviceGetUuid_v2(unsigned char *u, int d) { for (int i = 0; i < 16; i++) u[i] = 0x11 * i; return OK; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = (size_t)1 << 30; return OK; }
int cuDeviceGetAttribute(int *v, int a, int d) {
    *v = a == 75 ? 9 : a == 76 ? 0 : a == 38 ? 1024 : a == 16 ? 132 : a == 97 ? 232448 : 0;
    return OK;
}
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)16; return OK; }
int cuDevicePrimaryCtxRelease_v2(int d) { return OK; }
int cuCtxSetCurrent(void *c) { return OK; }

int cuModuleLoadData(void **m, const void *image) { *m = (void *)32; return memcmp(image, "\177ELF", 4) ? 200 : OK; }
int cuModuleUnload(void *m) { return OK; }
int cuModuleGetFunction(function **f, void *m, const char *name) {
    const char *underscore = strrchr(name, '_');
    if (!underscore || strlen(name) > 63) return NOT_FOUND;
    *f = calloc(1, sizeof **f); /* lives as long as the process */
    strcpy((*f)->name, name);
    (*f)->params = atoi(underscore + 1);
    return OK;
}
int cuFuncGetAttribute(int *v, int a, function *f) {
    *v = a == 4 ? 40 : a == 3 ? (strncmp(f->name, "spill", 5) ? 0 : 16) : a == 1 ? 64 : 0;
    return OK;
}
int cuFuncSetAttribute(function *f, int a, int v) {
    if (a != 8 || v > 232448 - 64) return INVALID;
    f->max_dynamic = v;
    return OK;
}
int cuFuncGetParamInfo(function *f, size_t i, size_t *offset, size_t *size) {
    if (i >= (size_t)f->params) return INVALID;
    *offset = 8 * i;
    *size = !strncmp(f->name, "mapped_", 7) && i + 1 == (size_t)f->params ? 128 : 8;
    return OK;
}
/* Begins with the address; the rest says what was asked for. */
int cuTensorMapEncodeTiled(ptr *m, unsigned dtype, unsigned rank, ptr at, const ptr *extents, const ptr *strides, const unsigned *sizes, const unsigned *steps, unsigned interleave, unsigned swizzle, unsigned promotion, unsigned fill) {
    if (at % 16 || (ptr)m % 64 || rank < 2 || interleave || fill) return INVALID;
    m[0] = at;
    m[1] = dtype | rank << 8 | swizzle << 16;
    m[2] = extents[rank - 1];
    m[3] = strides[rank - 2];
    m[4] = sizes[rank - 1] * steps[rank - 1];
    return OK;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, function *f, int threads, size_t shared) { *n = 2; return OK; }

/* A library's finalizer waits for ever while another thread is inside it, as the real ones' may. */
static volatile int hangs;
__attribute__((destructor)) static void finalize(void) { while (hangs) pause(); }

static void execute(const node *n) {
    const char *k = n->f->name;
    char *a = (char *)n->args[0], *b = (char *)n->args[1];
    double us = 10;
    if (!strncmp(k, "copy16_", 7)) memcpy(b, a, 16);
    else if (!strncmp(k, "launch_", 7)) { uint32_t w[8] = {n->grid[0], n->grid[1], n->grid[2], n->block[0], n->block[1], n->block[2], n->shared, (uint32_t)n->f->max_dynamic}; memcpy(a, w, sizeof w); }
    else if (!strncmp(k, "address_", 8)) memcpy(a, &n->args[0], 8);
    else if (!strncmp(k, "mapped_", 7)) memcpy(a, n->map, 16);
    else if (!strncmp(k, "before_", 7)) a[-3] = a[-200] = 1;
    else if (!strncmp(k, "after_", 6)) a[16 + 4] = a[16 + 200] = 1;
    else if (!strncmp(k, "change_", 7)) a[15] ^= 1;
    else if (!strncmp(k, "barrier_", 8)) { memcpy(a, b, 16); b[16] = 1; }
    else if (!strncmp(k, "leave_", 6)) b[3] = 1;
    else if (!strncmp(k, "fault_", 6)) sticky = ILLEGAL_ADDRESS;
    else if (!strncmp(k, "hang_", 5)) for (hangs = 1;;) pause();
    else if (!strncmp(k, "crash_", 6)) abort();
    else if (!strncmp(k, "slow_", 5)) us = 30;
    else if (!strncmp(k, "heat_", 5)) us = now_us < 20000 ? 10 : 20;
    else if (!strncmp(k, "track_", 6)) { us = n->args[0] == last_read ? 10 : 50; last_read = n->args[0]; }
    else if (!strncmp(k, "place_", 6)) { if (!first_read) first_read = n->args[0]; us = n->args[0] == first_read ? 10 : 20; }
    now_us += us;
}

static int launch(function *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, stream *s, void **p, void **extra) {
    if (sticky) return sticky;
    if (!x || !y || !z || !bx || bx > 1024 || (int)shared > f->max_dynamic) return INVALID;
    node n = {f, {x, y, z}, {bx, by, bz}, shared, {0}};
    for (int i = 0; i < f->params && i < 8; i++) n.args[i] = *(ptr *)p[i];
    if (!strncmp(f->name, "mapped_", 7)) memcpy(n.map, p[f->params - 1], sizeof n.map);
    if (s->capturing) {
        if (s->capturing->count == MAX_NODES) return INVALID;
        s->capturing->nodes[s->capturing->count++] = n;
    } else execute(&n);
    return OK;
}

// Launches run one after the other here, so one that may overlap is a plain one.
typedef struct { unsigned id; char pad[4]; union { char pad[64]; int allowed; } value; } attribute;
typedef struct { unsigned grid[3], block[3], shared; stream *s; attribute *attributes; unsigned count; } config;
int cuLaunchKernelEx(const config *c, function *f, void **p, void **extra) {
    if (c->count > 1 || (c->count && (c->attributes->id != 6 || c->attributes->value.allowed != 1))) return INVALID;
    return launch(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared, c->s, p, extra);
}

int cuMemAlloc_v2(ptr *p, size_t n) { *p = (ptr)aligned_alloc(512, (n + 511) / 512 * 512); return sticky ? sticky : *p ? OK : 2; }
int cuMemAllocHost_v2(void **p, size_t n) { *p = malloc(n); return sticky ? sticky : *p ? OK : 2; }
int cuMemFreeHost(void *p) { free(p); return OK; }
int cuMemFree_v2(ptr p) { free((void *)p); return OK; }
int cuMemcpyHtoD_v2(ptr d, const void *s, size_t n) { memcpy((void *)d, s, n); return sticky; }
int cuMemcpyDtoH_v2(void *d, ptr s, size_t n) { memcpy(d, (void *)s, n); return sticky; }
int cuMemcpyDtoD_v2(ptr d, ptr s, size_t n) { memcpy((void *)d, (void *)s, n); return sticky; }
int cuMemsetD8_v2(ptr d, unsigned char v, size_t n) { memset((void *)d, v, n); return sticky; }

int cuStreamCreate(stream **s, unsigned flags) { *s = calloc(1, sizeof **s); return sticky; }
int cuStreamDestroy_v2(stream *s) { free(s); return OK; }
int cuStreamSynchronize(stream *s) { return sticky; }
int cuStreamBeginCapture_v2(stream *s, int mode) {
    s->capturing = calloc(1, sizeof(graph));
    s->capturing->nodes = malloc(MAX_NODES * sizeof(node));
    return sticky;
}
int cuStreamEndCapture(stream *s, graph **g) { *g = s->capturing; s->capturing = 0; return sticky; }
int cuGraphInstantiateWithFlags(graph **e, graph *g, unsigned long long flags) {
    *e = malloc(sizeof(graph));
    (*e)->count = g->count;
    (*e)->nodes = malloc((g->count + 1) * sizeof(node));
    memcpy((*e)->nodes, g->nodes, g->count * sizeof(node));
    return OK;
}
int cuGraphDestroy(graph *g) { free(g->nodes); free(g); return OK; }
int cuGraphExecDestroy(graph *g) { free(g->nodes); free(g); return OK; }
int cuGraphLaunch(graph *g, stream *s) {
    for (int i = 0; i < g->count; i++) execute(&g->nodes[i]);
    return sticky;
}
int cuEventCreate(event **e, unsigned flags) { *e = calloc(1, sizeof **e); return sticky; }
int cuEventDestroy_v2(event *e) { free(e); return OK; }
int cuEventRecord(event *e, stream *s) { e->at = now_us; return sticky; }
int cuEventSynchronize(event *e) { return sticky; }
int cuEventElapsedTime_v2(float *ms, event *a, event *b) { *ms = (float)((b->at - a->at) / 1000); return sticky; }
