// What the main program around generated kernels calls: it reads the buffers, runs the launches block by block and writes every
// buffer back.
//
// The tests print `main` after the kernels: one `launch` or `run_grid` each.
// Usage: PROGRAM ORDER [MUTANT], where ORDER is 0 (forward), 1 (backward) or 2 (shuffled). Buffers are the files `bufferN.bin`
// of the working folder; each is placed against an unmapped page, so that an access past its end faults. The other orders
// leave a little room there and so give other addresses: a result must not depend on them.
#pragma once
#include "twins.h"
#include <type_traits>

extern unsigned char shared[232448 + 1024];

namespace emu {
struct Buffer { unsigned char* data; size_t bytes; bool given; };
extern std::vector<Buffer> buffers;

void read_buffers(const std::vector<bool>& given);
void write_buffers();

void run_grid(Dim3 grid, unsigned threads, unsigned bytes, std::function<void()> kernel);

// `split_workspace`: bytes of counters, which are 0 before a launch and must be 0 after it; all bytes; blocks that find room together.
struct SplitWorkspace { unsigned long long counters, bytes, together; };

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

struct Shape { Dim3 grid; unsigned threads, bytes; };
// A launch of a kernel that takes `count` arguments; `call` gets their places.
void launch(unsigned count, void (*call)(const std::vector<unsigned char*>&, const void*), const void* kernel, Shape shape,
            const std::vector<unsigned>& arguments, SplitWorkspace split_workspace, bool overlaps, const std::vector<Tensor>& tensors);

template <class... P>
inline void launch(void (*kernel)(P...), Dim3 grid, unsigned threads, unsigned bytes, const std::vector<unsigned>& arguments, SplitWorkspace split_workspace, bool overlaps, const std::vector<Tensor>& tensors) {
  const auto go = [](const std::vector<unsigned char*>& pointers, const void* kernel) {
    call(*(void (*const*)(P...))kernel, pointers, std::index_sequence_for<P...>{});
  };
  launch(sizeof...(P), go, &kernel, {grid, threads, bytes}, arguments, split_workspace, overlaps, tensors);
}
}  // namespace emu
