// The reference's four kernels: an expression an element, a fold, a running fold, a product. What they work on is given to them as functions of
// numbers that count elements; each takes more turns where there is more work than blocks. 256 threads a block.

// To f32, an inexact number to the neighbour with an odd last bit.
TW_FN float tw_odd(double x) {
  const float near = (float)x;
  const int bits = __float_as_int(near);
  if ((double)near == x || x != x || (bits & 1)) return near;
  return __int_as_float(fabs((double)near) > fabs(x) ? bits - 1 : bits + 1);
}

// A number moved by less than half of the distance between neighbours that have DIGITS binary digits fewer: SplitMix64 of its bits says by how much, so that
// the same number always moves the same way.
template <int DIGITS> TW_FN float tw_dithered(float x) {
  if (!(fabsf(x) > 1e-30f && fabsf(x) < 1e38f)) return x;
  const unsigned bits = __float_as_uint(x);
  unsigned long long z = bits + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  const int half = 1 << (DIGITS - 1), by = (int)(z % (2 * half)) - half;
  return __uint_as_float(bits + (unsigned)max(by, 1 - half));
}

// one(n) for each n.
template <class One> TW_FN void tw_each(long long count, One one) {
  for (long long n = (long long)blockIdx.x * 256 + threadIdx.x; n < count; n += (long long)gridDim.x * 256) one(n);
}

// For each result n and each part p of its terms, those from p * length on: store(p * results + n, the fold of term(n, k)).
// LANES threads share one, neighbours in neighbouring terms.
template <int LANES, class T, class Combine, class Term, class Store>
TW_FN void tw_fold(unsigned char* shared, long long results, long long depth, long long length, long long parts, T start,
                   Combine combine, Term term, Store store) {
  T* const values = (T*)shared;
  const long long own = 256 / LANES, lane = threadIdx.x % LANES, all = results * parts;
  for (long long first = blockIdx.x * own; first < all; first += gridDim.x * own) {
    const long long at = first + threadIdx.x / LANES, part = at / results, n = at - part * results;
    T value = start;
    if (at < all) {
      const long long end = min(depth, (part + 1) * length);
      for (long long k = part * length + lane; k < end; k += LANES) value = combine(value, term(n, k));
    }
    if (LANES > 1) {
      values[threadIdx.x] = value;
      __syncthreads();
      for (int half = LANES / 2; half > 0; half /= 2) {
        if (lane < half) values[threadIdx.x] = combine(values[threadIdx.x], values[threadIdx.x + half]);
        __syncthreads();
      }
      value = values[threadIdx.x];
    }
    if (at < all && lane == 0) store(at, value);
  }
}

// For each row and each i of `count` from `first` on: store(row, i, the fold of term(row, j) over those j below `depth` for which
// of_i * i + of_j * j + offset >= 0). In the direction in which more and more j are among them, each is combined once.
template <class T, class Combine, class Term, class Store>
TW_FN void tw_running(long long rows, long long first, long long count, long long depth, long long of_i, long long of_j, long long offset,
                      T start, Combine combine, Term term, Store store) {
  tw_each(rows, [&](long long row) {
    T value = start;
    long long done = 0;
    for (long long t = 0; t < count; ++t) {
      const long long i = first + (of_i > 0 ? t : count - 1 - t);
      for (; done < depth; ++done) {
        const long long j = of_j < 0 ? done : depth - 1 - done;
        if (of_i * i + of_j * j + offset < 0) break;
        value = combine(value, term(row, j));
      }
      store(row, i, value);
    }
  });
}

// For each batch b and each part p of the terms: store(b, p, m, n, the sum over k of left(b, m, k) * right(b, n, k)), by tiles of
// 16 RM rows and 16 RN columns, of which a thread has RM times RN. ACROSS: neighbouring threads read neighbouring k.
template <int RM, int RN, bool LEFT_ACROSS, bool RIGHT_ACROSS, class T, class Add, class Left, class Right, class Store>
TW_FN void tw_product(unsigned char* shared, long long batches, long long rows, long long columns, long long depth, long long length,
                      long long parts, T zero, Add add, Left left, Right right, Store store) {
  constexpr int TM = 16 * RM, TN = 16 * RN, TK = 16;
  T (*const a)[TM + 1] = (T(*)[TM + 1])shared;
  T (*const b)[TN + 1] = (T(*)[TN + 1])(shared + sizeof(T) * TK * (TM + 1));
  const int t = threadIdx.x, tm = t / 16, tn = t % 16;
  const long long down = (rows + TM - 1) / TM, over = (columns + TN - 1) / TN, tiles = batches * parts * down * over;
  for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const long long n0 = tile % over * TN, m0 = tile / over % down * TM, part = tile / (over * down) % parts;
    const long long batch = tile / (over * down) / parts, end = min(depth, (part + 1) * length);
    T sums[RM][RN];
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
      for (int j = 0; j < RN; ++j) sums[i][j] = zero;
    for (long long k0 = part * length; k0 < end; k0 += TK) {
#pragma unroll
      for (int i = 0; i < RM; ++i) {
        const int e = t + 256 * i, m = LEFT_ACROSS ? e / TK : e % TM, k = LEFT_ACROSS ? e % TK : e / TM;
        a[k][m] = m0 + m < rows && k0 + k < end ? left(batch, m0 + m, k0 + k) : zero;
      }
#pragma unroll
      for (int i = 0; i < RN; ++i) {
        const int e = t + 256 * i, n = RIGHT_ACROSS ? e / TK : e % TN, k = RIGHT_ACROSS ? e % TK : e / TN;
        b[k][n] = n0 + n < columns && k0 + k < end ? right(batch, n0 + n, k0 + k) : zero;
      }
      __syncthreads();
#pragma unroll 4
      for (int k = 0; k < TK; ++k) {
        T x[RM], y[RN];
#pragma unroll
        for (int i = 0; i < RM; ++i) x[i] = a[k][tm + 16 * i];
#pragma unroll
        for (int j = 0; j < RN; ++j) y[j] = b[k][tn + 16 * j];
#pragma unroll
        for (int i = 0; i < RM; ++i)
#pragma unroll
          for (int j = 0; j < RN; ++j) sums[i][j] = add(sums[i][j], x[i], y[j]);
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < RM; ++i)
#pragma unroll
      for (int j = 0; j < RN; ++j) {
        const long long m = m0 + tm + 16 * i, n = n0 + tn + 16 * j;
        if (m < rows && n < columns) store(batch, part, m, n, sums[i][j]);
      }
  }
}
