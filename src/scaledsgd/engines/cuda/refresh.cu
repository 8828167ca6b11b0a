// What a refresh asks for. Defined ahead of this file: real, LD, RANK, and TILE, the width of the
// square of G that a block adds up, 16 x 16 threads with (TILE / 16)^2 sums each.

constexpr int SUMS = TILE / 16;
constexpr int ROWS = 1024 / TILE;  // of X, staged at a time: 16 KB of shared memory

__device__ void stage(double (&part)[ROWS][TILE], const real* X, long long row, long long d,
                      int column) {
    for (int e = threadIdx.x; e < ROWS * TILE; e += 256) {
        const int i = e / TILE, q = column + e % TILE;
        part[i][e % TILE] = row + i < d && q < RANK ? double(X[(row + i) * LD + q]) : 0.0;
    }
}

// G = X^T X in float64 whatever X is.
extern "C" __global__ void __launch_bounds__(256)
gram(const real* X, long long d, double* G) {
    __shared__ double left[ROWS][TILE], right[ROWS][TILE];
    constexpr int tiles = (RANK + TILE - 1) / TILE;
    const int P = blockIdx.y / tiles * TILE, Q = blockIdx.y % tiles * TILE;
    if (P > Q) return;  // G is symmetric
    const int p = threadIdx.x / 16, q = threadIdx.x % 16;
    double sums[SUMS][SUMS] = {};
    for (long long row = (long long)blockIdx.x * ROWS; row < d; row += (long long)gridDim.x * ROWS) {
        stage(left, X, row, d, P);
        stage(right, X, row, d, Q);
        __syncthreads();
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int a = 0; a < SUMS; ++a)
#pragma unroll
                for (int b = 0; b < SUMS; ++b)
                    sums[a][b] += left[i][p + 16 * a] * right[i][q + 16 * b];
        __syncthreads();
    }
    for (int a = 0; a < SUMS; ++a)
        for (int b = 0; b < SUMS; ++b) {
            const int row = P + p + 16 * a, column = Q + q + 16 * b;
            if (row >= RANK || column >= RANK) continue;
            atomicAdd(G + row * RANK + column, sums[a][b]);
            if (P != Q) atomicAdd(G + column * RANK + row, sums[a][b]);
        }
}

#if RANK <= SMALL  // larger ones are a job for cuBLAS
struct Basis {
    real T[RANK][RANK];
};

// X <- X T, a row a thread. T comes with the launch: no copy, and none to wait for.
extern "C" __global__ void __launch_bounds__(256)
turn(real* X, const __grid_constant__ Basis basis, long long d) {
    const long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row >= d) return;
    real x[RANK];
#pragma unroll
    for (int p = 0; p < RANK; ++p) x[p] = X[row * LD + p];
#pragma unroll
    for (int q = 0; q < RANK; ++q) {
        real y = 0;
#pragma unroll
        for (int p = 0; p < RANK; ++p) y += x[p] * basis.T[p][q];
        X[row * LD + q] = y;
    }
}
#endif
