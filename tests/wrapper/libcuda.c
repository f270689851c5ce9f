// A driver without a GPU, for check.py: launches are logged, and a stream with a host function on it holds what comes after.
//
// As the real one, it waits where a queue is full, and keeps a lock while it does; it forbids allocations while a stream is captured, but
// in the relaxed mode; a graph lets go of its user objects when it and all that was made of it are gone. Launches are logged when
// they are queued, and those of a graph when it is launched.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
enum { QUEUE = 64, STREAMS = 16, ARGUMENTS = 8, LOG = 1 << 16, KEPT = 64, RANK = 5, MAPS = 256 };
enum { INVALID_CONTEXT = 201, INVALID_HANDLE = 400, CAPTURE_UNSUPPORTED = 900, IN_MODE_RELAXED = 2 };

typedef struct {
  uint64_t stream, capture, context, arguments[ARGUMENTS];
  const char* entry;
  unsigned grid[3], block[3], shared;
  int attribute, allowed;  // of a launch with an attribute: which, and its value
} Launch;
typedef struct {
  uint64_t address, extents[RANK], strides[RANK];
  unsigned type, rank, box[RANK], steps[RANK], rest[4];
} Map;
typedef struct {
  void (*destroy)(void*);
  void* data;
  int references;
} Object;
typedef struct {
  Launch launches[KEPT];
  Object* objects[KEPT];
  int launch_count, object_count;
} Graph;
typedef struct {
  int alive, held, queued;  // held: host functions that have not returned
  Graph* graph;             // what records it
  uint64_t capture;
} Stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t entrance = PTHREAD_MUTEX_INITIALIZER;  // kept by a launch while it waits for room
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static Stream streams[STREAMS];  // handle n is streams[n]; handle 0 is the default stream
static uint64_t next_capture = 1;
static __thread void* context;
static __thread int mode;
static __thread void* current;

// What check.py reads and sets.
Launch fake_log[LOG];
int fake_logged, fake_arguments, fake_allocated, fake_graph_launches, fake_waited;
const char* fake_locked = "";  // a call that may wait and that was made with Python's lock
int fake_torn;  // captures whose stream was destroyed before their end
const char* fake_failing = "";  // a call that fails once
unsigned char fake_image[16];   // the first bytes of the module that was loaded last
void (*fake_on_launch)(void);
int fake_interrupting;  // whether the next launch is interrupted, as by Ctrl-C
int fake_mode(void) { return mode; }
void* fake_context(void) { return context; }
void fake_set_context(void* c) { context = c; }
Map fake_maps[MAPS];  // every tensor map that was described
int fake_described;
int fake_shared;  // the shared memory that was reserved last
// PyTorch's current stream on this thread.
void fake_set_stream(void* s) { current = s; }
int fake_current_stream(int device, void** stream) {
  (void)device;
  *stream = current;
  return 0;
}

static int fails(const char* call) {
  if (strcmp(call, fake_failing)) return 0;
  fake_failing = "";
  return 1;
}
extern int PyGILState_Check(void);
// Calls that use what all threads share: they wait for whoever waits.
#define SHARED(call)                                \
  if (PyGILState_Check()) fake_locked = #call;      \
  if (fails(#call)) return 999;                     \
  pthread_mutex_lock(&entrance);                    \
  pthread_mutex_unlock(&entrance)
#define NEEDS_CONTEXT \
  if (!context) return INVALID_CONTEXT
#define FORBIDDEN_IN_CAPTURES \
  if (mode != IN_MODE_RELAXED && captures()) return CAPTURE_UNSUPPORTED

static Stream* stream_of(void* handle) { return &streams[(uintptr_t)handle % STREAMS]; }
static int captures(void) {
  for (int i = 0; i < STREAMS; i++)
    if (streams[i].graph) return 1;
  return 0;
}

Result cuGetErrorString(int error, const char** text) {
  *text = error == CAPTURE_UNSUPPORTED ? "operation not permitted when stream is capturing" : "a pretended error";
  return 0;
}
Result cuDeviceGet(int* device, int ordinal) {
  SHARED(cuDeviceGet);
  *device = ordinal;
  return 0;
}
Result cuDevicePrimaryCtxRetain(void** c, int device) {
  SHARED(cuDevicePrimaryCtxRetain);
  *c = (void*)(uintptr_t)(0x1000 + device);
  return 0;
}
Result cuCtxGetCurrent(void** c) {
  *c = context;
  return 0;
}
Result cuCtxSetCurrent(void* c) {
  context = c;
  return 0;
}
Result cuThreadExchangeStreamCaptureMode(int* m) {
  int before = mode;
  mode = *m;
  *m = before;
  return 0;
}
Result cuModuleLoadData(void** module, const void* image) {
  SHARED(cuModuleLoadData);
  NEEDS_CONTEXT;
  FORBIDDEN_IN_CAPTURES;
  memcpy(fake_image, image, sizeof fake_image);
  *module = (void*)1;
  return 0;
}
Result cuModuleGetFunction(void** function, void* module, const char* name) {
  (void)module;
  SHARED(cuModuleGetFunction);
  *function = strdup(name);
  return 0;
}
Result cuFuncSetAttribute(void* function, int attribute, int value) {
  (void)function;
  SHARED(cuFuncSetAttribute);
  if (attribute != 8) return 1;
  fake_shared = value;
  return 0;
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared) {
  (void)function, (void)threads, (void)shared;
  SHARED(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  *blocks = 1;
  return 0;
}
Result cuTensorMapEncodeTiled(uint64_t* map, unsigned type, unsigned rank, uint64_t address, const uint64_t* extents,
                              const uint64_t* strides, const unsigned* box, const unsigned* steps, unsigned a, unsigned b, unsigned c,
                              unsigned d) {
  SHARED(cuTensorMapEncodeTiled);
  if ((uintptr_t)map % 64 || rank > RANK) return 1;
  *map = address;
  pthread_mutex_lock(&lock);
  if (fake_described < MAPS) {
    Map* m = &fake_maps[fake_described++];
    *m = (Map){.address = address, .type = type, .rank = rank, .rest = {a, b, c, d}};
    memcpy(m->extents, extents, rank * sizeof *extents);
    memcpy(m->strides, strides, (rank - 1) * sizeof *strides);
    memcpy(m->box, box, rank * sizeof *box);
    memcpy(m->steps, steps, rank * sizeof *steps);
  }
  pthread_mutex_unlock(&lock);
  return 0;
}
Result cuTensorMapReplaceAddress(uint64_t* map, uint64_t address) {
  int failed = fails("cuTensorMapReplaceAddress");
  *map = failed ? 0xBAD : address;
  return failed ? 999 : 0;
}
Result cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  SHARED(cuMemAlloc_v2);
  NEEDS_CONTEXT;
  FORBIDDEN_IN_CAPTURES;
  *address = (uint64_t)(uintptr_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset((void*)(uintptr_t)*address, 0xAB, bytes);
  fake_allocated++;
  return 0;
}
Result cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void* stream) {
  (void)stream;
  SHARED(cuMemsetD8Async);
  memset((void*)(uintptr_t)address, value, bytes);
  return 0;
}
Result cuStreamCreate(void** stream, unsigned flags) {
  (void)flags;
  SHARED(cuStreamCreate);
  NEEDS_CONTEXT;
  pthread_mutex_lock(&lock);
  int i = 1;
  while (i < STREAMS && streams[i].alive) i++;
  if (i < STREAMS) streams[i] = (Stream){.alive = 1};
  pthread_mutex_unlock(&lock);
  *stream = (void*)(uintptr_t)i;
  return i < STREAMS ? 0 : 2;
}
Result cuStreamSynchronize(void* stream) {
  (void)stream;
  SHARED(cuStreamSynchronize);
  return 0;
}
Result cuStreamDestroy_v2(void* stream) {
  SHARED(cuStreamDestroy_v2);
  fake_torn += stream_of(stream)->graph != NULL;
  stream_of(stream)->alive = 0;
  return 0;
}
Result cuStreamIsCapturing(void* stream, int* status) {
  SHARED(cuStreamIsCapturing);
  *status = stream_of(stream)->graph ? 1 : 0;
  return 0;
}
Result cuStreamGetCaptureInfo_v2(void* stream, int* status, uint64_t* id, void** graph, void* dependencies, size_t* count) {
  (void)dependencies, (void)count;
  SHARED(cuStreamGetCaptureInfo_v2);
  Stream* s = stream_of(stream);
  *status = s->graph ? 1 : 0;
  *id = s->capture;
  *graph = s->graph;
  return 0;
}
Result cuStreamBeginCapture_v2(void* stream, int m) {
  (void)m;
  SHARED(cuStreamBeginCapture_v2);
  stream_of(stream)->graph = calloc(1, sizeof(Graph));
  stream_of(stream)->capture = next_capture++;
  return 0;
}
Result cuStreamEndCapture(void* stream, void** graph) {
  SHARED(cuStreamEndCapture);
  *graph = stream_of(stream)->graph;
  stream_of(stream)->graph = NULL;
  return *graph ? 0 : 901;
}
Result cuGraphInstantiateWithFlags(void** replay, void* graph, unsigned long long flags) {
  (void)flags;
  SHARED(cuGraphInstantiateWithFlags);
  Graph* copy = malloc(sizeof(Graph));
  *copy = *(Graph*)graph;
  for (int i = 0; i < copy->object_count; i++) copy->objects[i]->references++;
  *replay = copy;
  return 0;
}
Result cuUserObjectRelease(void* object, unsigned count) {
  Object* o = object;
  SHARED(cuUserObjectRelease);
  o->references -= (int)count;
  if (o->references == 0) {
    o->destroy(o->data);
    free(o);
  }
  return 0;
}
Result cuGraphDestroy(void* graph) {
  Graph* g = graph;
  SHARED(cuGraphDestroy);
  for (int i = 0; i < g->object_count; i++) cuUserObjectRelease(g->objects[i], 1);
  free(g);
  return 0;
}
Result cuGraphExecDestroy(void* replay) { return cuGraphDestroy(replay); }
Result cuUserObjectCreate(void** object, void* data, void (*destroy)(void*), unsigned references, unsigned flags) {
  SHARED(cuUserObjectCreate);
  if (flags != 1) return 1;
  Object* o = malloc(sizeof(Object));
  *o = (Object){destroy, data, (int)references};
  *object = o;
  return 0;
}
Result cuGraphRetainUserObject(void* graph, void* object, unsigned count, unsigned flags) {
  Graph* g = graph;
  SHARED(cuGraphRetainUserObject);
  if (count != 1 || flags != 1 || g->object_count == KEPT) return 1;
  g->objects[g->object_count++] = object;
  return 0;
}

static void queue(Stream* s, const Launch* launch) {
  while (s->held && s->queued >= QUEUE) {
    fake_waited++;
    pthread_cond_wait(&moved, &lock);
  }
  s->queued += s->held > 0;
  if (fake_logged < LOG) fake_log[fake_logged++] = *launch;
}
Result cuGraphLaunch(void* replay, void* stream) {
  Graph* g = replay;
  SHARED(cuGraphLaunch);
  NEEDS_CONTEXT;
  pthread_mutex_lock(&entrance);
  pthread_mutex_lock(&lock);
  fake_graph_launches++;
  for (int i = 0; i < g->launch_count; i++) {
    Launch launch = g->launches[i];
    launch.stream = (uint64_t)(uintptr_t)stream;
    queue(stream_of(stream), &launch);
  }
  pthread_mutex_unlock(&lock);
  pthread_mutex_unlock(&entrance);
  return 0;
}

typedef struct {
  int id, pad, value, rest[15];
} Attribute;
typedef struct {
  unsigned grid[3], block[3], shared;
  void* stream;
  const Attribute* attributes;
  unsigned count;
} Config;
Result cuLaunchKernelEx(const Config* config, void* function, void** arguments, void** extra) {
  (void)extra;
  SHARED(cuLaunchKernelEx);
  NEEDS_CONTEXT;
  if ((uintptr_t)context < 0x1000) return INVALID_HANDLE;
  if (config->count > 1) return 1;
  Launch launch = {.stream = (uint64_t)(uintptr_t)config->stream, .context = (uint64_t)(uintptr_t)context, .entry = function};
  memcpy(launch.grid, config->grid, sizeof launch.grid);
  memcpy(launch.block, config->block, sizeof launch.block);
  launch.shared = config->shared;
  if (config->count) launch.attribute = config->attributes->id, launch.allowed = config->attributes->value;
  for (int i = 0; i < fake_arguments; i++) launch.arguments[i] = *(uint64_t*)arguments[i];
  if (fake_on_launch) fake_on_launch();
  if (fake_interrupting) raise(SIGINT);
  fake_interrupting = 0;
  Stream* s = stream_of(config->stream);
  sched_yield();
  pthread_mutex_lock(&entrance);
  pthread_mutex_lock(&lock);
  if (s->graph) {
    launch.capture = s->capture;
    if (s->graph->launch_count < KEPT) s->graph->launches[s->graph->launch_count++] = launch;
  } else {
    queue(s, &launch);
  }
  pthread_mutex_unlock(&lock);
  pthread_mutex_unlock(&entrance);
  return 0;
}

typedef struct {
  void (*call)(void*);
  void* data;
  Stream* stream;
} Host;
static void* host(void* data) {
  Host h = *(Host*)data;
  free(data);
  h.call(h.data);
  pthread_mutex_lock(&lock);
  h.stream->held--;
  h.stream->queued = 0;
  pthread_cond_broadcast(&moved);
  pthread_mutex_unlock(&lock);
  return NULL;
}
Result cuLaunchHostFunc(void* stream, void (*call)(void*), void* data) {
  Host* h = malloc(sizeof(Host));
  *h = (Host){call, data, stream_of(stream)};
  h->stream->held++;
  pthread_t thread;
  return pthread_create(&thread, NULL, host, h) || pthread_detach(thread);
}
