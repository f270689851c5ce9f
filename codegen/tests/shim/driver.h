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

alignas(1024) unsigned char shared[232448 + 1024];

namespace emu {
struct Buffer { unsigned char* data; size_t bytes; };
inline std::vector<Buffer> buffers;

inline void read_buffers(unsigned count) {
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
    buffers.push_back({data, bytes});
  }
}

inline void write_buffers() {
  for (unsigned i = 0; i < buffers.size(); ++i) {
    FILE* f = std::fopen(("buffer" + std::to_string(i) + ".bin").c_str(), "wb");
    if (!f || std::fwrite(buffers[i].data, 1, buffers[i].bytes, f) != buffers[i].bytes) fail("a buffer could not be written");
    std::fclose(f);
  }
}

template <class... P, size_t... I>
inline void call(void (*kernel)(P...), const std::vector<unsigned>& arguments, std::index_sequence<I...>) {
  kernel((P)(void*)buffers[arguments[I]].data...);
}

// One launch: every block, one after the other.
inline void run_grid(Dim3 grid, unsigned threads, unsigned bytes, std::function<void()> kernel) {
  gridDim = grid;
  blockDim = {threads, 1, 1};
  body = kernel;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        seen_from = nullptr;
        std::memset(shared, 0xff, bytes + 1024);
        seen_from = shared;
        run_block(threads);
        seen_from = nullptr;
        for (size_t i = bytes; i < bytes + 1024; ++i)
          if (shared[i] != 0xff) fail("a write past the shared memory that the launch asked for");
      }
}

template <class... P>
inline void launch(void (*kernel)(P...), Dim3 grid, unsigned threads, unsigned bytes, std::vector<unsigned> arguments) {
  if (arguments.size() != sizeof...(P)) fail("a launch passes another number of arguments than its kernel takes");
  run_grid(grid, threads, bytes, [&] { call(kernel, arguments, std::index_sequence_for<P...>{}); });
}
}  // namespace emu
