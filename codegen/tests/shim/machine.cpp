// What of the machine does not depend on the kernels: compiled once, and linked to each of them. It is not watched itself: what it
// does to shared memory for a kernel it reports by `touch`.
// Fibers go from stack to stack by `_longjmp`, which the checked one takes for an error.
#undef _FORTIFY_SOURCE
#include "driver.h"
#include <algorithm>
#include <map>
#include <string>
#include <sys/mman.h>

alignas(1024) unsigned char shared[232448 + 1024];

namespace emu {
// Copies of a thread that a barrier is told of when they have landed; `box`: so many bytes that the hardware copied.
struct Announced { void* barrier; unsigned thread; std::vector<Copy> copies; unsigned box = 0; };

// Who made a barrier, and when: others may use it after the next barrier of all threads.
struct Made { unsigned thread, block_barriers; long long bytes; bool told; };

// What the four warps of a group have done together so far, in order, and whether some of them have ended.
struct Step { const char* what; int line; };
struct Group { std::vector<Step> steps; bool ended = false; };

// Bytes that the current thread writes though another one did: threads that hold copies of one value may all write it, so
// the byte must stay what it was.
struct Twice { unsigned char* at; unsigned char value; };

// One for each thread, not written before it is used: most of it never is.
typedef std::vector<std::unique_ptr<char[]>> Stacks;
constexpr unsigned STACK = 256 * 1024;

std::vector<Fiber> fibers;
std::vector<Warp> warps;
std::vector<Buffer> buffers;
static jmp_buf scheduler;
static Stacks stacks;
static std::vector<Stacks> spare;  // of blocks that ended
static std::vector<Group> groups;
static std::function<void()> body;
static std::vector<Announced> announced;
static std::map<void*, Made> made_barriers;
// A cluster: its threads that came to where all of them meet, and how often they have met; of each block whether its barriers are there for
// others, whether it has ended, and what another one did to its shared memory: copies, or arrivals at a barrier.
struct Cluster { unsigned arrived = 0, met = 0; bool made[16] = {}, ended[16] = {}; std::vector<Announced> mail[16]; };
static std::map<unsigned, Cluster> clusters;  // of a launch
static unsigned clustered = 0;  // blocks of a cluster, once one said so
static Cluster& own_cluster() { return clusters[blockIdx.x / clustered]; }
static unsigned own_rank() { return blockIdx.x % clustered; }
static std::vector<Twice> twice;

void outside(const void* at) {
  if (!other_count || !running || running->waited) return;
  for (unsigned i = 0; i < other_count; ++i)
    if ((const unsigned char*)at >= others[i].from && (const unsigned char*)at < others[i].from + others[i].bytes)
      fail("memory of the launches in front is used before they are waited for");
}

void touch(const void* at, unsigned bytes, bool write) {
  outside(at);
  const size_t first = (const unsigned char*)at - seen_from;
  if (!seen_from || first >= sizeof seen / sizeof *seen) return;
  const unsigned t = current, w = t / 32, l = t % 32;
  for (size_t i = first; i < first + bytes && i < sizeof seen / sizeof *seen; ++i) {
    Seen& s = seen[i];
    if (s.write_epoch == epoch && s.writer != t && (s.writer / 32 != w || s.write_sync == syncs[w])) {
      if (!write) fail("a race: shared memory is read while it is written");
      twice.push_back({seen_from + i, seen_from[i]});
    }
    if (s.read_epoch != epoch) s.warps = s.lanes = 0, s.read_epoch = epoch;
    if (s.warp != w || s.read_sync != syncs[w]) s.lanes = 0;
    if (write && ((s.warps & ~(1u << w)) || (s.lanes & ~(1u << l))))
      fail("a race: shared memory is written while it is read");
    if (write) s.write_epoch = epoch, s.writer = t, s.write_sync = syncs[w], s.block = block, s.written = ++now;
    else s.warps |= 1u << w, s.warp = w, s.read_sync = syncs[w], s.lanes |= 1u << l;
  }
}

// Fails where a byte is read through the asynchronous proxy, which neither its writer nor the reader has told of it.
void check_proxy(unsigned at) {
  const Seen& s = seen[at];
  if (s.block == block && fenced[s.writer] < s.written && fenced[current] < s.written)
    fail("a warpgroup instruction before the proxy fence");
}

// A line of the text that is running, which lies in the working folder.
static std::string text_line(int line) {
  FILE* f = std::fopen("kernels.cpp", "r");
  std::string text;
  for (int c; f && line > 0 && (c = std::fgetc(f)) != EOF;) {
    if (line == 1 && (c != ' ' || !text.empty()) && c != '\n') text += char(c);
    line -= c == '\n';
  }
  if (f) std::fclose(f);
  return text;
}

static std::string said(const Step& s) { return std::string(s.what) + ", `" + text_line(s.line) + "` (line " + std::to_string(s.line) + ")"; }

// A thread takes the next step that its group takes together.
void together(const char* what, int line) {
  Group& group = groups[current / 128];
  Fiber& me = fibers[current];
  const Step step = {what, line};
  if (me.steps == group.steps.size()) {
    if (group.ended) fail(("a warp has ended, and another of its group comes to " + said(step)).c_str());
    group.steps.push_back(step);
  }
  const Step& first = group.steps[me.steps++];
  if (first.line != line || first.what != what)
    fail(("warps of a group part ways: one comes to " + said(first) + ", another to " + said(step)).c_str());
}

static void check_twice() {
  for (const Twice& b : twice)
    if (*b.at != b.value) fail("a race: two threads write the same shared memory");
  twice.clear();
}

// From the scheduler to a fiber, and back. A context is for the first time alone: `swapcontext` asks the kernel for the signal mask twice.
static void resume(Fiber& f) {
  if (_setjmp(scheduler)) return;
  if (f.started) _longjmp(f.place, 1);
  f.started = true;
  setcontext(&f.context);
}
static void leave(Fiber& f) {
  if (!_setjmp(f.place)) _longjmp(scheduler, 1);
}

void suspend(int why) {
  check_twice();
  fibers[current].waits = why;
  leave(fibers[current]);
}

static void entry() {
  body();
  check_twice();
  Fiber& f = fibers[current];
  if (!f.open.empty()) fail("asynchronous copies were issued and never committed");
  if (!f.products.empty() || !f.product_groups.empty()) fail("warpgroup instructions were issued and never waited for");
  Group& group = groups[current / 128];
  if (f.steps < group.steps.size()) fail(("a warp ends, and another of its group came to " + said(group.steps[f.steps])).c_str());
  group.ended = true;
  f.done = true;
  --live;
  bool waited = !other_count;
  for (const Fiber& g : fibers) waited |= g.waited;
  if (!live && !waited) fail("a block ends before the launches in front have ended");
  leave(f);
}

void barrier() { ++at_barrier; suspend(1); }

static void release(unsigned w) {
  warps[w].arrived = 0;
  for (unsigned l = 0; l < 32 && w * 32 + l < fibers.size(); ++l) fibers[w * 32 + l].waits = 0;
}

// A block that stepped aside.
struct Aside {
  Dim3 index; std::vector<Fiber> fibers; Stacks stacks; std::vector<Warp> warps; std::vector<Group> groups; unsigned at_barrier, live; std::vector<unsigned char> shared;
  std::vector<Announced> announced; std::map<void*, Made> made; std::vector<unsigned> named; std::vector<bool> votes;
};

static std::vector<Aside> aside;  // of a launch

// The shared memory of another block, which stepped aside.
static const unsigned char* shared_of(unsigned block) {
  for (const Aside& a : aside) if (a.index.x == block) return a.shared.data();
  return nullptr;
}

static void start_block(unsigned threads) {
  fibers.assign(threads, {});
  warps.assign((threads + 31) / 32, {});
  groups.assign((threads + 127) / 128, {});
  if (!spare.empty()) { stacks = std::move(spare.back()); spare.pop_back(); } else stacks.clear();
  while (stacks.size() < threads) stacks.emplace_back(new char[STACK]);
  at_barrier = 0;
  live = threads;
  std::fill(std::begin(named), std::end(named), 0u);
  announced.clear();
  made_barriers.clear();
  for (unsigned t = 0; t < threads; ++t) {
    Fiber& f = fibers[t];
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stacks[t].get();
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;  // `entry` leaves and is not resumed
    makecontext(&f.context, entry, 0);
  }
}

// Runs the current block until it ends, or until all that can move wait for other blocks: says whether it ended, and whether
// anything but such a wait happened.
struct Progress { bool ended, moved; };
static Progress run_block() {
  const unsigned threads = fibers.size();
  ++epoch, ++block_barriers;  // whatever ran before was another block, or this one before its threads met
  bool any = false;
  std::vector<unsigned> queue(threads);
  while (live) {
    for (unsigned t = 0; t < threads; ++t) queue[t] = order == 1 ? threads - 1 - t : t;
    if (order == 2)
      for (unsigned t = threads; t-- > 1;) {
        rng = rng * 6364136223846793005ull + 1442695040888963407ull;
        std::swap(queue[t], queue[(rng >> 33) % (t + 1)]);
      }
    bool moved = false, spins = false;
    for (unsigned t : queue) {
      Fiber& f = fibers[t];
      const bool waited = f.waits == 3;
      if (f.done || (f.waits && !waited)) continue;
      current = t;
      f.waits = 0;
      running = &f;
      const uint64_t before = passes;
      resume(f);
      running = nullptr;
      if (f.waits == 3) spins = true;
      if (f.waits != 3 || !waited || passes != before) moved = true;
      const unsigned w = t / 32, lanes = std::min(32u, threads - w * 32);
      if (warps[w].arrived == lanes) release(w);
    }
    if (at_barrier && at_barrier == live) {
      at_barrier = 0;
      ++epoch, ++block_barriers;
      for (Fiber& f : fibers) if (f.waits == 1) f.waits = 0;
      moved = true;
    }
    any |= moved;
    if (!moved && live) {
      if (spins) return {false, any};
      fail("deadlock: threads wait at different barriers");
    }
  }
  return {true, true};
}

static void land(const std::vector<Copy>& group) {
  for (const Copy& c : group) {
    touch(c.to, c.bytes, true);
    std::memcpy(c.to, c.from, c.take);
    std::memset(c.to + c.take, 0, c.bytes - c.take);
  }
}

// Asynchronous copies and warpgroup instructions of a thread.
void copy_async(void* to, const void* from, unsigned bytes, bool exists) {
  touch(to, bytes, true);
  const Copy copy = {(unsigned char*)to, (const unsigned char*)from, bytes, exists ? bytes : 0u};
  if (order == 2) land({copy});
  else fibers[current].open.push_back(copy);
}

void copy_commit() {
  Fiber& f = fibers[current];
  f.groups.push_back(std::move(f.open));
  f.open.clear();
}

void copy_wait(unsigned pending) {
  auto& groups = fibers[current].groups;
  while (groups.size() > pending) {
    land(groups.front());
    groups.erase(groups.begin());
  }
}

void product(std::function<void()> carry_out) { fibers[current].products.push_back(std::move(carry_out)); }

void products_commit() {
  Fiber& f = fibers[current];
  f.product_groups.push_back(std::move(f.products));
  f.products.clear();
}

void products_wait(unsigned pending) {
  auto& groups = fibers[current].product_groups;
  while (groups.size() > pending) {
    for (auto& product : groups.front()) product();
    groups.erase(groups.begin());
  }
}

void store_partial(float* to, float x) { fibers[current].partials.push_back({to, x}); }

void partials_land() {
  for (Fiber& f : fibers) {
    for (auto& p : f.partials) *p.first = p.second;
    f.partials.clear();
  }
}

}  // namespace emu

#define EMU_HOOK extern "C" void
#define EMU_HOOKS(n) \
  EMU_HOOK __tsan_read##n(void* p) { emu::touch(p, n, false); } \
  EMU_HOOK __tsan_write##n(void* p) { emu::touch(p, n, true); } \
  EMU_HOOK __tsan_unaligned_read##n(void* p) { emu::touch(p, n, false); } \
  EMU_HOOK __tsan_unaligned_write##n(void* p) { emu::touch(p, n, true); }
EMU_HOOKS(1) EMU_HOOKS(2) EMU_HOOKS(4) EMU_HOOKS(8) EMU_HOOKS(16)
EMU_HOOK __tsan_read_range(void* p, unsigned long n) { emu::touch(p, n, false); }
EMU_HOOK __tsan_write_range(void* p, unsigned long n) { emu::touch(p, n, true); }
EMU_HOOK __tsan_vptr_read(void*) {}
EMU_HOOK __tsan_vptr_update(void*, void*) {}
EMU_HOOK __tsan_func_entry(void*) {}
EMU_HOOK __tsan_func_exit() {}
EMU_HOOK __tsan_init() {}

// Barriers.
struct emu_barrier { u16 threads, missing; u32 phases; };
void emu_spin() {
  if (++emu::spins > (emu::mutant ? 1000000 : 100000000)) emu::fail("deadlock: a thread waits for what nobody announces");
  // What a block of a cluster waits for, the other one may have to do.
  emu::suspend(emu::clustered ? 3 : 0);
}
using emu::made_barriers;
void tw_barrier_init(void* p, u32 threads) {
  *(emu_barrier*)p = {u16(threads), u16(threads), 0};
  made_barriers[p] = {emu::current, emu::block_barriers, 0, false};
}
static emu_barrier& emu_made_barrier(void* p) {
  const auto made = made_barriers.find(p);
  if (made == made_barriers.end()) emu::fail("a barrier that nobody made");
  if (made->second.thread != emu::current && made->second.block_barriers == emu::block_barriers)
    emu::fail("a barrier of whose making another thread need not know");
  return *(emu_barrier*)p;
}
// A phase ends when all have come and all bytes have landed.
static void emu_phase(void* p) {
  emu_barrier& b = emu_made_barrier(p);
  if (b.missing == 0 && made_barriers[p].bytes == 0) b.missing = b.threads, ++b.phases, ++emu::epoch;
}
void tw_barrier_arrive(void* p) {
  emu_barrier& b = emu_made_barrier(p);
  if (b.missing == 0) emu::fail("a barrier to which more threads come than it waits for");
  --b.missing;
  emu_phase(p);
}
void tw_copy_arrive(void* p) {
  emu::Fiber& f = emu::fibers[emu::current];
  if (!f.groups.empty()) emu::fail("announced copies among groups of copies");
  emu::announced.push_back({p, emu::current, std::move(f.open)});
  f.open.clear();
}
template <class Which> static void emu_arrive(Which which) {
  for (size_t i = 0; i < emu::announced.size();) {
    if (!which(emu::announced[i])) { ++i; continue; }
    const emu::Announced a = std::move(emu::announced[i]);
    emu::announced.erase(emu::announced.begin() + i);
    const unsigned waiting = emu::current;
    emu::current = a.thread;
    emu::land(a.copies);
    if (a.box) emu::fenced[emu::current] = ++emu::now;
    emu::current = waiting;
    if (!a.box) { tw_barrier_arrive(a.barrier); continue; }
    made_barriers[a.barrier].bytes -= a.box;
    emu_phase(a.barrier);
  }
}
void tw_barrier_wait(void* p, u32 parity) {
  const emu_barrier& b = emu_made_barrier(p);
  while ((b.phases & 1) == parity) {
    emu_arrive([=](const emu::Announced& a) { return a.barrier == p; });
    if ((b.phases & 1) == parity) emu_spin();
  }
  ++emu::passes;
}
void tw_copies_end() {
  tw_copy_commit();
  tw_copy_wait<0>();
  emu_arrive([](const emu::Announced& a) { return a.thread == emu::current; });
}

// Boxes.
void tw_barriers_made() {
  for (auto& b : made_barriers) if (b.second.thread == emu::current) b.second.told = true;
  if (emu::clustered) emu::own_cluster().made[emu::own_rank()] = true;
}
void tw_box_expect(void* p, u32 bytes) {
  emu_made_barrier(p);
  made_barriers[p].bytes += bytes;
  tw_barrier_arrive(p);
}
// Something is done to the shared memory of the other block of a cluster of two.
static void emu_send(const emu::Announced& what) {
  emu::Cluster& c = emu::own_cluster();
  const unsigned other = 1 - emu::own_rank();
  if (!c.made[other]) emu::fail("a barrier of another block that is not there yet");
  if (c.ended[other]) emu::fail("the shared memory of a block that has ended");
  c.mail[other].push_back(what);
}
// What the other block did to this one's while that was aside.
static void emu_receive() {
  ++emu::epoch, ++emu::block_barriers;  // whatever ran before was the other block
  std::vector<emu::Announced> mail = std::move(emu::own_cluster().mail[emu::own_rank()]);
  emu::own_cluster().mail[emu::own_rank()].clear();
  for (emu::Announced& a : mail) {
    emu::current = a.thread;
    if (!a.box) { tw_barrier_arrive(a.barrier); continue; }
    void* const barrier = a.barrier;
    emu::announced.push_back(std::move(a));
    if (emu::order == 2) emu_arrive([=](const emu::Announced& x) { return x.barrier == barrier && x.box; });
  }
}
static void emu_cluster_meet() {
  emu::Cluster& c = emu::own_cluster();
  const unsigned met = c.met;
  if (++c.arrived == emu::clustered * emu::fibers.size()) c.arrived = 0, ++c.met, ++emu::epoch;
  while (c.met == met) emu_spin();
  ++emu::passes;
}
int emu_cluster_rank(unsigned size) {
  if (gridDim.x % size) emu::fail("a grid that is not made of whole clusters");
  emu::clustered = size;
  return emu::own_rank();
}
void tw_cluster_begins() { emu_cluster_meet(); }
void tw_cluster_meets() { emu_cluster_meet(); }
float tw_load_peer(const float* at, int rank) {
  if (unsigned(rank) == emu::own_rank()) return *at;
  const unsigned wanted = blockIdx.x - emu::own_rank() + rank;
  const unsigned char* memory = emu::shared_of(wanted);
  if (!memory || unsigned(rank) >= emu::clustered) emu::fail("the shared memory of a block that is not there");
  float x;
  std::memcpy(&x, memory + ((const unsigned char*)at - shared), sizeof x);
  return x;
}
void emu_peer_arrive(void* barrier) { emu_send({barrier, emu::current, {}, 0}); }
void emu_box(void* to, const tw_map& map, void* barrier, const long long* from, unsigned rank, bool to_all) {
  if (rank != map.rank) emu::fail("a box with another number of coordinates than its tensor has dimensions");
  if ((uintptr_t)to % 128) emu::fail("a box that is not aligned to 128 bytes");
  if (emu_made_barrier(barrier); !made_barriers[barrier].told) emu::fail("a barrier that the hardware does not know of");
  emu::outside(map.data);
  emu::Announced box = {barrier, emu::current, {}, 2};
  for (unsigned i = 0; i < map.rank; ++i) box.box *= map.sizes[i];
  const unsigned mask = map.line / 16 - 1;
  for (unsigned b = 0; b < box.box; b += 16) {
    u64 left = b / map.line, start = 0;
    const long long x = from[0] + b % map.line / 2;
    bool inside = x >= 0;
    for (unsigned i = 1; i < map.rank; ++i) {
      const long long y = from[i] + left % map.sizes[i];
      left /= map.sizes[i];
      inside = inside && y >= 0 && (u64)y < map.extents[i];
      start += y * map.strides[i];
    }
    const long long exist = inside ? std::min(8ll, (long long)map.extents[0] - x) : 0;
    const uintptr_t a = (uintptr_t)to + b;
    box.copies.push_back({(unsigned char*)(a ^ (a >> 7 & mask) << 4), exist > 0 ? map.data + start + 2 * x : map.data, 16, unsigned(std::max(0ll, 2 * exist))});
  }
  if (to_all) emu_send(box);
  emu::announced.push_back(std::move(box));
  if (emu::order == 2) emu_arrive([=](const emu::Announced& a) { return a.barrier == barrier && a.box; });
}

namespace emu {
void read_buffers(const std::vector<bool>& given) {
  const unsigned count = given.size();
  const size_t page = 4096;
  for (unsigned i = 0; i < count; ++i) {
    FILE* f = std::fopen(("buffer" + std::to_string(i) + ".bin").c_str(), "rb");
    if (!f) fail("a buffer's file is missing");
    std::fseek(f, 0, SEEK_END);
    const size_t bytes = std::ftell(f), beside = 256 * order;
    const size_t room = (bytes + beside + page - 1) / page * page + page;
    std::rewind(f);
    auto* base = (unsigned char*)mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(base + room - page, page, PROT_NONE);
    unsigned char* data = base + room - page - beside - (bytes + 15) / 16 * 16;
    std::memset(data + (bytes + 15) / 16 * 16, 0x7f, beside);
    if (std::fread(data, 1, bytes, f) != bytes) fail("a buffer's file is short");
    std::fclose(f);
    buffers.push_back({data, bytes, given[i]});
  }
}

void write_buffers() {
  for (unsigned i = 0; i < buffers.size(); ++i) {
    FILE* f = std::fopen(("buffer" + std::to_string(i) + ".bin").c_str(), "wb");
    if (!f || std::fwrite(buffers[i].data, 1, buffers[i].bytes, f) != buffers[i].bytes) fail("a buffer could not be written");
    std::fclose(f);
  }
}

// How many blocks that wait for others may be under way at the same time.
static unsigned most_together = 1;
// Blocks of former launches, and one.
static unsigned started = 1;

static void check_end(unsigned bytes) {
  for (size_t i = bytes; i < sizeof shared; ++i)
    if (shared[i] != 0xff) fail("a write past the shared memory that the launch asked for");
}

// One launch: every block, one after the other; blocks that wait step aside for those that follow.
void run_grid(Dim3 grid, unsigned threads, unsigned bytes, std::function<void()> kernel) {
  gridDim = grid;
  blockDim = {threads, 1, 1};
  body = kernel;
  aside.clear();
  clusters.clear();
  clustered = 0;
  unsigned long long next = 0;
  const unsigned long long blocks = 1ull * grid.x * grid.y * grid.z;
  const auto room = [] { return clustered ? clustered : most_together; };
  auto run = [&](Dim3 index) {
    seen_from = shared;
    block = started + index.x + grid.x * (index.y + grid.y * index.z);
    if (clustered) emu_receive();
    const Progress p = run_block();
    if (p.ended && clustered) own_cluster().ended[own_rank()] = true;
    seen_from = nullptr;
    check_end(bytes);
    if (p.ended) spare.push_back(std::move(stacks));
    else
      aside.push_back({index, std::move(fibers), std::move(stacks), std::move(warps), std::move(groups), at_barrier, live, {shared, shared + sizeof shared},
                       std::move(announced), std::move(made_barriers), {named, named + 16}, {&emu_votes[0][0], &emu_votes[0][0] + 32}});
    return p.moved;
  };
  while (next < blocks || !aside.empty()) {
    bool moved = false;
    // In the reverse order, all that find room start before anybody goes on, and the newest goes on first: two block groups wait at once.
    const bool starts = order == 1 && next < blocks && aside.size() < room();
    for (size_t waiting = starts ? 0 : aside.size(); waiting > 0; --waiting) {
      const size_t at = order == 1 ? waiting - 1 : 0;
      Aside a = std::move(aside[at]);
      aside.erase(aside.begin() + at);
      blockIdx = a.index;
      fibers = std::move(a.fibers);
      stacks = std::move(a.stacks);
      warps = std::move(a.warps);
      groups = std::move(a.groups);
      at_barrier = a.at_barrier;
      live = a.live;
      std::memcpy(shared, a.shared.data(), sizeof shared);
      announced = std::move(a.announced);
      made_barriers = std::move(a.made);
      std::copy(a.named.begin(), a.named.end(), named);
      std::copy(a.votes.begin(), a.votes.end(), &emu_votes[0][0]);
      moved |= run(a.index);
    }
    if (next < blocks && aside.size() < room()) {
      const unsigned long long at = next++;
      blockIdx = {unsigned(at % grid.x), unsigned(at / grid.x % grid.y), unsigned(at / grid.x / grid.y)};
      std::memset(shared, 0xff, sizeof shared);
      start_block(threads);
      run(blockIdx);
      moved = true;
    }
    if (!moved) fail("deadlock: blocks wait for blocks that have no room");
  }
  started += blocks;
}

void launch(unsigned count, void (*call)(const std::vector<unsigned char*>&, const void*), const void* kernel, Shape shape,
            const std::vector<unsigned>& arguments, SplitWorkspace split_workspace, bool overlaps, const std::vector<Tensor>& tensors) {
  std::vector<unsigned char*> pointers;
  for (unsigned a : arguments) pointers.push_back(buffers[a].data);
  std::vector<unsigned char> memory(split_workspace.bytes + 256, 0xff);
  unsigned char* start = memory.data() + (256 - (uintptr_t)memory.data() % 256) % 256;
  std::memset(start, 0, split_workspace.counters);
  if (split_workspace.bytes) pointers.push_back(start);
  std::vector<tw_map> maps;
  for (const Tensor& t : tensors) {
    tw_map map = {buffers[t.buffer].data + t.offset, unsigned(t.extents.size()), t.line};
    if (map.rank < 2 || map.rank > 5 || t.sizes.size() != map.rank || t.strides.size() + 1 != map.rank || (uintptr_t)map.data % 16)
      fail("a tensor map that the driver would refuse");
    for (unsigned i = 0; i < map.rank; ++i) {
      map.extents[i] = t.extents[i], map.sizes[i] = t.sizes[i], map.strides[i] = i ? t.strides[i - 1] : 2;
      if (map.sizes[i] - 1 > 255 || map.extents[i] - 1 >= 1ull << 32) fail("a tensor map that the driver would refuse");
      if (i && (map.strides[i] % 16 || map.strides[i] - 1 >= 1ull << 40)) fail("a tensor map that the driver would refuse");
    }
    if (t.line != 32 && t.line != 64 && t.line != 128) fail("a tensor map that the driver would refuse");
    if (2 * map.sizes[0] != map.line) fail("a box that is not as wide as its lines");
    maps.push_back(map);
  }
  for (tw_map& map : maps) pointers.push_back((unsigned char*)&map);
  if (pointers.size() != count) fail("a launch passes another number of arguments than its kernel takes");
  if (buffers.size() + 1 > sizeof others / sizeof *others) fail("more buffers than can be watched");
  if (overlaps) {
    for (const Buffer& b : buffers)
      if (!b.given) others[other_count++] = {b.data, b.bytes};
    others[other_count++] = {start, split_workspace.bytes};
  }
  most_together = split_workspace.together ? 2 * split_workspace.together : 1;
  run_grid(shape.grid, shape.threads, shape.bytes, [&] { call(pointers, kernel); });
  other_count = 0;
  for (size_t i = 0; i < split_workspace.counters; ++i) if (start[i]) fail("a counter of the split_workspace is not 0 after the launch");
}
}  // namespace emu
