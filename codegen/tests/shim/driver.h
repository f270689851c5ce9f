// The main program around generated kernels: reads a plan, runs the launches block by block, writes every buffer back.
//
// The tests print `main` after the kernels: one `launch` or `run_grid` each.
// Usage: PROGRAM ORDER [MUTANT], where ORDER is 0 (forward), 1 (backward) or 2 (shuffled). Buffers are the files `bufferN.bin`
// of the working folder; each is placed against an unmapped page, so that an access past its end faults. The other orders
// leave a little room there and so give other addresses: a result must not depend on them.
#pragma once
#include "twins.h"
#include <string>
#include <sys/mman.h>
#include <type_traits>

alignas(1024) unsigned char shared[232448 + 1024];

namespace emu {
struct Buffer { unsigned char* data; size_t bytes; bool given; };
inline std::vector<Buffer> buffers;

inline void read_buffers(const std::vector<bool>& given) {
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

inline void write_buffers() {
  for (unsigned i = 0; i < buffers.size(); ++i) {
    FILE* f = std::fopen(("buffer" + std::to_string(i) + ".bin").c_str(), "wb");
    if (!f || std::fwrite(buffers[i].data, 1, buffers[i].bytes, f) != buffers[i].bytes) fail("a buffer could not be written");
    std::fclose(f);
  }
}

// How many blocks that wait for others may be under way at the same time.
inline unsigned most_together = 1;
// Blocks of former launches, and one.
inline unsigned started = 1;

inline void check_end(unsigned bytes) {
  for (size_t i = bytes; i < sizeof shared; ++i)
    if (shared[i] != 0xff) fail("a write past the shared memory that the launch asked for");
}

// One launch: every block, one after the other; blocks that wait step aside for those that follow.
inline void run_grid(Dim3 grid, unsigned threads, unsigned bytes, std::function<void()> kernel) {
  gridDim = grid;
  blockDim = {threads, 1, 1};
  body = kernel;
  std::vector<Aside> aside;
  unsigned long long next = 0;
  const unsigned long long blocks = 1ull * grid.x * grid.y * grid.z;
  auto run = [&](Dim3 index) {
    seen_from = shared;
    block = started + index.x + grid.x * (index.y + grid.y * index.z);
    const Progress p = run_block();
    seen_from = nullptr;
    check_end(bytes);
    if (p.ended) spare.push_back(std::move(stacks));
    else aside.push_back({index, std::move(fibers), std::move(stacks), std::move(warps), at_barrier, live, {shared, shared + sizeof shared}});
    return p.moved;
  };
  while (next < blocks || !aside.empty()) {
    bool moved = false;
    // In the reverse order, all that find room start before anybody goes on, and the newest goes on first: two teams meet at once.
    const bool starts = order == 1 && next < blocks && aside.size() < most_together;
    for (size_t waiting = starts ? 0 : aside.size(); waiting > 0; --waiting) {
      const size_t at = order == 1 ? waiting - 1 : 0;
      Aside a = std::move(aside[at]);
      aside.erase(aside.begin() + at);
      blockIdx = a.index;
      fibers = std::move(a.fibers);
      stacks = std::move(a.stacks);
      warps = std::move(a.warps);
      at_barrier = a.at_barrier;
      live = a.live;
      std::memcpy(shared, a.shared.data(), sizeof shared);
      moved |= run(a.index);
    }
    if (next < blocks && aside.size() < most_together) {
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

// `board`: bytes of counters, which are 0 before a launch and must be 0 after it; all bytes; blocks that find room together.
struct Board { unsigned long long counters, bytes, together; };

template <class P> inline P argument(void* at) {
  if constexpr (std::is_pointer_v<P>) return (P)at;
  else return *(P*)at;
}
template <class... P, size_t... I>
inline void call(void (*kernel)(P...), const std::vector<unsigned char*>& arguments, std::index_sequence<I...>) {
  kernel(argument<P>(arguments[I])...);
}

// A tensor of a buffer, as a launch describes it.
struct Tensor { unsigned buffer; unsigned long long offset; std::vector<unsigned long long> extents, strides, sizes; unsigned line; };

template <class... P>
inline void launch(void (*kernel)(P...), Dim3 grid, unsigned threads, unsigned bytes, std::vector<unsigned> arguments, Board board, bool overlaps, const std::vector<Tensor>& tensors) {
  std::vector<unsigned char*> pointers;
  for (unsigned a : arguments) pointers.push_back(buffers[a].data);
  std::vector<unsigned char> memory(board.bytes + 256, 0xff);
  unsigned char* start = memory.data() + (256 - (uintptr_t)memory.data() % 256) % 256;
  std::memset(start, 0, board.counters);
  if (board.bytes) pointers.push_back(start);
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
  if (pointers.size() != sizeof...(P)) fail("a launch passes another number of arguments than its kernel takes");
  if (buffers.size() + 1 > sizeof others / sizeof *others) fail("more buffers than can be watched");
  if (overlaps) {
    for (const Buffer& b : buffers)
      if (!b.given) others[other_count++] = {b.data, b.bytes};
    others[other_count++] = {start, board.bytes};
  }
  most_together = board.together ? 2 * board.together : 1;
  run_grid(grid, threads, bytes, [&] { call(kernel, pointers, std::index_sequence_for<P...>{}); });
  other_count = 0;
  for (size_t i = 0; i < board.counters; ++i) if (start[i]) fail("a counter of the board is not 0 after the launch");
}
}  // namespace emu
