// C++ besides arithmetic: constants, device functions, local arrays, switches, structures.

__constant__ float weights[8] = {0.5f, -1.0f, 2.0f, 0.25f, 4.0f, -0.125f, 1.5f, 3.0f};
__device__ int table[6] = {3, 1, 4, 1, 5, 9};
__device__ unsigned visits;

extern "C" __global__ void constants(const int* pick, float* out, int* from_table, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = weights[pick[i] & 7];
    from_table[i] = table[pick[i] % 6];
    atomicAdd(&visits, 1u);
}

struct Triple {
    double a;
    int b;
    float c;
};

__noinline__ __device__ int collatz(int n) {
    int steps = 0;
    while (n != 1) {
        n = n & 1 ? 3 * n + 1 : n / 2;
        ++steps;
    }
    return steps;
}

__noinline__ __device__ Triple twist(Triple t, int turn) {
    Triple r;
    r.a = t.a * turn;
    r.b = t.b - turn;
    r.c = t.c + collatz(turn + 1);
    return r;
}

__noinline__ __device__ void swap_ends(int* values, int count) {
    const int held = values[0];
    values[0] = values[count - 1];
    values[count - 1] = held;
}

__noinline__ __device__ bool odd(unsigned char x) { return x & 1; }

extern "C" __global__ void calls(const int* in, int* steps, double* a, int* b, float* c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Triple t{(double)in[i], in[i], 0.5f};
    if (odd((unsigned char)in[i])) {
        t = twist(t, in[i] % 5);
    } else {
        t = twist(twist(t, 2), 3);
    }
    a[i] = t.a;
    b[i] = t.b;
    c[i] = t.c;
    steps[i] = collatz(in[i]);
}

// An array that is indexed at run time lives in local memory; its address goes to a function.
extern "C" __global__ void local_arrays(const int* in, int* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int values[16];
    for (int j = 0; j < 16; ++j) values[(j * 5 + in[i]) & 15] = in[i] + j * j;
    swap_ends(values, 1 + (in[i] & 7));
    int sum = 0;
    for (int j = 0; j <= (in[i] & 15); ++j) sum = sum * 3 + values[j];
    out[i] = sum;
}

extern "C" __global__ void switches(const int* op, const int* x, int* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i];
    switch (op[i]) {
        case 0: v += 7; break;
        case 1: v *= 3; // falls through
        case 2: v ^= 0x55; break;
        case 3: v = v << 4 | (unsigned)v >> 28; break;
        case 4: for (int j = 0; j < (x[i] & 3); ++j) v = v * v + j; break;
        case 5: v = -v; break;
        case 6: v = ~v; break;
        case 7: v %= 1000; break;
        case 8: return;
        default: v = 0;
    }
    out[i] = v;
}

struct Node {
    float4 box;
    int2 child;
    short tag;
    unsigned char flags[6];
};

extern "C" __global__ void structures(const Node* nodes, Node by_value, float* area, int* tags, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const Node node = nodes[i];
    area[i] = (node.box.z - node.box.x) * (node.box.w - node.box.y) + by_value.box.x;
    tags[i] = node.tag * 2 + node.flags[i % 6] + by_value.flags[i % 6] + (node.child.x < node.child.y);
}

// Named barriers between producer and consumer warps, volatile accesses and fences.
extern "C" __global__ void handover(const int* in, int* out) {
    __shared__ int box[64];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int round = 0; round < 3; ++round) {
        if (warp == 0) {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            out[round * 32 + lane] = box[lane] * 2;
            asm volatile("bar.arrive 2, 64;" ::: "memory");
        } else {
            if (round > 0) asm volatile("bar.sync 2, 64;" ::: "memory");
            box[lane] = in[round * 32 + (lane ^ 5)];
            __threadfence_block();
            asm volatile("bar.arrive 1, 64;" ::: "memory");
        }
    }
    if (warp == 1) asm volatile("bar.sync 2, 64;" ::: "memory");
}
