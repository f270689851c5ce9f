// Kernels of tests/hardware.rs. `a` has 2^23 floats, `b` has 2^18.
#define A (1 << 23)
#define B (1 << 18)

__device__ int thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ int threads() { return gridDim.x * blockDim.x; }

extern "C" __global__ void copy(const float* a, float* b) {
    for (int i = thread(); i < B; i += threads()) b[i] = a[i];
}
extern "C" __global__ void sums(const float* a, float* b) {
    float sum = 0;
    for (int i = 4 * thread(); i < A; i += 4 * threads()) {
        float4 v = *reinterpret_cast<const float4*>(a + i);
        sum += v.x + v.y + v.z + v.w;
    }
    b[thread() % B] = sum;
}
extern "C" __global__ void spin(const float* a, float* b) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < 200000);
    if (thread() == 0) b[0] = a[0];
}
extern "C" __global__ void shared(const float* a, float* b) {
    extern __shared__ float s[];
    for (int i = threadIdx.x; i < 50000; i += blockDim.x) s[i] = a[i];
    __syncthreads();
    for (int i = threadIdx.x; i < 50000; i += blockDim.x) b[i] = s[49999 - i];
}
extern "C" __global__ void local(const float* a, float* b) {
    float v[96];
    for (int i = 0; i < 96; i++) v[i] = a[i];
    b[thread()] = v[(int)a[thread()] % 96];
}
extern "C" __global__ void after(const float* a, float* b) { b[B] = a[0]; }
extern "C" __global__ void before(const float* a, float* b) { b[-1] = a[0]; }
extern "C" __global__ void change(float* a, float* b) { if (thread() == 0) a[A - 1] = 7; }
extern "C" __global__ void fault(const float* a, float* b) { *reinterpret_cast<volatile float*>(16) = a[0]; }
extern "C" __global__ void hang(const float* a, volatile float* b) { while (b[0] != 1) {} }
extern "C" __global__ void trap(const float* a, float* b) { asm volatile("trap;"); }
