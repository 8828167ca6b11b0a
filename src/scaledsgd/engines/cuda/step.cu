// One step body for all losses. A sample is worked on by LANES neighbouring threads, of which each
// holds 16-byte pieces of the sample's rows; what the table says of a loss is defined ahead of this
// file (cuda_kernels.py): real, row_t, ARITY, COEF_A, COEF_B, slope(z, y), CAPPED, WEIGHTED, and the
// shape of a row: LD numbers, zeros past the rank.

constexpr int VEC = 16 / sizeof(real);
constexpr int PIECES = (LD / VEC + LANES - 1) / LANES;  // of a row, held by one thread

// Rows are read where the atomics land, in the second-level cache: the first-level one goes stale.
__device__ void load(float (&x)[4], const float* p) {
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "l"(p) : "memory");
}

__device__ void load(double (&x)[2], const double* p) {
    asm volatile("ld.relaxed.gpu.global.v2.f64 {%0, %1}, [%2];"
                 : "=d"(x[0]), "=d"(x[1]) : "l"(p) : "memory");
}

__device__ void add(float* p, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900  // one atomic for four numbers
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
#else
    for (int e = 0; e < 4; ++e) atomicAdd(p + e, x[e]);
#endif
}

__device__ void add(double* p, const double (&x)[2]) {
    atomicAdd(p, x[0]);
    atomicAdd(p + 1, x[1]);
}

// u = sum_m a_m x_m and v = sum_m b_m x_m, of one number of each row. The branches are constant.
__device__ void form(const real (&x)[ARITY][PIECES][VEC], int k, int e, real& u, real& v) {
    constexpr int a[] = COEF_A, b[] = COEF_B;
    u = v = 0;
#pragma unroll
    for (int m = 0; m < ARITY; ++m) {
        if (a[m] != 0) u += real(a[m]) * x[m][k][e];
        if (b[m] != 0) v += real(b[m]) * x[m][k][e];
    }
}

struct Group {  // the threads that share a sample
    int lane = threadIdx.x % LANES;
    long long number = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    long long stride = (long long)gridDim.x * (blockDim.x / LANES);  // samples in flight
    unsigned mask = (LANES == 32 ? ~0u : (1u << LANES % 32) - 1) << (threadIdx.x % 32 - lane);

    __device__ bool holds(int k) const { return (k * LANES + lane) * VEC < LD; }
    __device__ int offset(int k) const { return (k * LANES + lane) * VEC; }

    __device__ real sum(real part) const {  // over the group, for each of its threads
#pragma unroll
        for (int o = LANES / 2; o > 0; o /= 2) part += __shfl_xor_sync(mask, part, o, LANES);
        return part;
    }
};

__device__ void name(row_t (&rows)[ARITY], const row_t* index, long long t) {
#pragma unroll
    for (int m = 0; m < ARITY; ++m) rows[m] = __ldcs(index + t * ARITY + m);  // read once
}

// Reads the rows of a sample and returns z to every thread of the group.
__device__ real score(real (&x)[ARITY][PIECES][VEC], const real* X, const row_t (&rows)[ARITY],
                      const Group& group) {
#pragma unroll
    for (int m = 0; m < ARITY; ++m)
#pragma unroll
        for (int k = 0; k < PIECES; ++k)
            if (group.holds(k)) load(x[m][k], X + (long long)rows[m] * LD + group.offset(k));
    real z = 0;
#pragma unroll
    for (int k = 0; k < PIECES; ++k)
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            real u, v;
            form(x, k, e, u, v);
            if (group.holds(k)) z += u * v;
        }
    return group.sum(z);
}

// dz/dx_m, of one number of each row.
__device__ real along(int m, real u, real v) {
    constexpr int a[] = COEF_A, b[] = COEF_B;
    return (a[m] != 0 ? real(a[m]) * v : real(0)) + (b[m] != 0 ? real(b[m]) * u : real(0));
}

// h = sum_m alpha_m |dz/dx_m|_P^2: a step changes z by the slope times this, to first order.
__device__ real reach(const real (&x)[ARITY][PIECES][VEC], const real (&P)[PIECES][VEC],
                      const real* rates, const Group& group) {
    real h = 0;
#pragma unroll
    for (int k = 0; k < PIECES; ++k)
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            real u, v, squares = 0;
            form(x, k, e, u, v);
#pragma unroll
            for (int m = 0; m < ARITY; ++m) squares += rates[m] * along(m, u, v) * along(m, u, v);
            if (group.holds(k)) h += P[k][e] * squares;
        }
    return group.sum(h);
}

// A target, and the weight beside it if samples have weights.
struct Target {
    real y = 0, weight = 1;

    __device__ void take(const real* targets, long long t) {  // read once
        y = __ldcs(targets + (WEIGHTED ? 2 * t : t));
        if (WEIGHTED) weight = __ldcs(targets + 2 * t + 1);
    }
};

struct Frozen {  // for a round; comes with the launch, so that there is no copy to wait for
    real P[LD];  // diagonal
    real rates[ARITY];  // alpha for each row that a sample names
    real cap;  // on what a step may undo, if CAPPED
};

// Steps with a frozen P. As many samples are in flight as the launch has groups.
extern "C" __global__ void __launch_bounds__(256)
run(real* X, const __grid_constant__ Frozen frozen, const row_t* index, const real* targets, long long n,
    double* total) {
    const Group group;
    real P[PIECES][VEC], rates[ARITY], x[ARITY][PIECES][VEC];
#pragma unroll
    for (int k = 0; k < PIECES; ++k)
#pragma unroll
        for (int e = 0; e < VEC; ++e) P[k][e] = group.holds(k) ? frozen.P[group.offset(k) + e] : 0;
#pragma unroll
    for (int m = 0; m < ARITY; ++m) rates[m] = frozen.rates[m];
    double squares = 0;
    row_t next[ARITY];
    Target target;
    if (group.number < n) {
        name(next, index, group.number);
        target.take(targets, group.number);
    }
    for (long long t = group.number; t < n; t += group.stride) {
        row_t rows[ARITY];
#pragma unroll
        for (int m = 0; m < ARITY; ++m) rows[m] = next[m];
        const Target seen = target;
        // The next sample's names come from afar, so they set out before this one is worked on.
        if (t + group.stride < n) {
            name(next, index, t + group.stride);
            target.take(targets, t + group.stride);
        }
        real g = slope(score(x, X, rows, group), seen.y);
        if (group.lane == 0) squares += double(seen.weight) * double(g) * double(g);
        g *= seen.weight;
        if (CAPPED) {
            const real h = seen.weight * reach(x, P, rates, group);
            if (h > frozen.cap) g *= frozen.cap / h;
        }
#pragma unroll
        for (int m = 0; m < ARITY; ++m) {
            bool named = false;  // before, in this sample: such a row has moved already
#pragma unroll
            for (int l = 0; l < m; ++l) named = named || rows[l] == rows[m];
            if (named) continue;
#pragma unroll
            for (int k = 0; k < PIECES; ++k) {
                real move[VEC];
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    real u, v;
                    form(x, k, e, u, v);
                    move[e] = -g * rates[m] * P[k][e] * along(m, u, v);
                }
                if (group.holds(k)) add(X + (long long)rows[m] * LD + group.offset(k), move);
            }
        }
    }
    // Blocks are whole warps, or a part of a single one.
    if (blockDim.x % 32 == 0)
        for (int o = 16; o > 0; o /= 2) squares += __shfl_down_sync(~0u, squares, o);
    if (threadIdx.x % 32 == 0 || (blockDim.x % 32 && group.lane == 0)) atomicAdd(total, squares);
}

// z of every sample.
extern "C" __global__ void __launch_bounds__(256)
scores(const real* X, const row_t* index, long long n, real* out) {
    const Group group;
    real x[ARITY][PIECES][VEC];
    for (long long t = group.number; t < n; t += group.stride) {
        row_t rows[ARITY];
        name(rows, index, t);
        const real z = score(x, X, rows, group);
        if (group.lane == 0) out[t] = z;
    }
}

// The slope by itself, for the test that holds it against the table's.
extern "C" __global__ void slopes(const real* z, const real* y, long long n, real* out) {
    const long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (t < n) out[t] = slope(z[t], y[t]);
}
