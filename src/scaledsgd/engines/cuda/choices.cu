// A step on the two rows of each choice, as in cpu/choice_kernels.py: a warp a choice, each of its
// threads every 32nd column. Rows change by atomic adds; LD numbers lie from one row to the next.

#define PIECES ((RANK + 31) / 32)

__device__ float total(float part) {
    for (int offset = 16; offset; offset >>= 1) part += __shfl_xor_sync(~0u, part, offset);
    return part;
}

extern "C" __global__ void squared(
    float *U, float *V, const int *users, const int *items, const float *weights,
    const long long *order, long long count, float theta,
    const float *seen_u, const float *seen_i, const float *ridge_u, const float *ridge_i,
    const float *grams, const float *means, double *squares) {
    int lane = threadIdx.x & 31;
    long long warp = (blockIdx.x * (long long)blockDim.x + threadIdx.x) >> 5;
    long long warps = ((long long)gridDim.x * blockDim.x) >> 5;
    float found = 0;
    for (long long t = warp; t < count; t += warps) {
        long long s = order[t];
        long long u = users[s], i = items[s];
        float *x = U + u * LD, *v = V + i * LD;
        float w = theta * weights[s], nu = seen_u[u], ni = seen_i[i];
        float hu = ridge_u[u], hi = ridge_i[i], bu = w / nu, bi = w / ni;
        float xs[PIECES], vs[PIECES], ps[PIECES], qs[PIECES], z = 0, lever = 0;
        for (int k = 0; k < PIECES; ++k) {
            int q = lane + 32 * k;
            bool in = q < RANK;
            float a = xs[k] = in ? x[q] : 0, b = vs[k] = in ? v[q] : 0;
            float gu = in ? grams[RANK + q] : 0, gi = in ? grams[q] : 0;
            ps[k] = in ? 1 / (nu * means[RANK + q] + (1 + bu) * (gu + hu)) : 0;
            qs[k] = in ? 1 / (ni * means[q] + (1 + bi) * (gi + hi)) : 0;
            z += a * b;
            lever += ps[k] * b * b + qs[k] * a * a;
        }
        z = total(z);
        lever = total(lever);
        float e = w * (1 - z) / (1 + w * lever);
        found += (1 - z) * (1 - z);
        for (int k = 0; k < PIECES; ++k) {
            int q = lane + 32 * k;
            if (q < RANK) {
                atomicAdd(x + q, ps[k] * (e * vs[k] - bu * (grams[RANK + q] + hu) * xs[k]));
                atomicAdd(v + q, qs[k] * (e * xs[k] - bi * (grams[q] + hi) * vs[k]));
            }
        }
    }
    if (lane == 0 && found) atomicAdd(squares, (double)found);
}

// Row x P of a matrix (RANK, RANK), for a row of which each thread of a warp has every 32nd number.
__device__ void times(const float *x, const float *P, float *out) {
    int lane = threadIdx.x & 31;
    for (int k = 0; k < PIECES; ++k) out[k] = 0;
    for (int p = 0; p < RANK; ++p) {
        float one = __shfl_sync(~0u, x[p >> 5], p & 31);
        for (int k = 0; k < PIECES; ++k)
            if (lane + 32 * k < RANK) out[k] += one * P[(long long)p * RANK + lane + 32 * k];
    }
}

// The softmax. A block of b choices and N negatives has 2 b + N rows: users, items, negatives. Which
// block it is, is counted here (`next`, and `at` for the kernels that follow), so that the same
// launches serve all blocks of a round. A warp a row. `gather` takes rows and, for cosines, divides
// them by their length.
extern "C" __global__ void gather(
    const float *X, const int *rows, const int *next, int *at, int count, float *out,
    float *inverse) {
    int lane = threadIdx.x & 31, k = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (k == 0 && lane == 0) *at = *next;
    if (k >= count) return;
    const float *x = X + (long long)rows[(long long)*next * count + k] * LD;
    float length = 0;
    for (int q = lane; q < RANK; q += 32) length += x[q] * x[q];
    float scale = COSINE ? rsqrtf(total(length) + 1e-20f) : 1.0f;
    for (int q = lane; q < RANK; q += 32) out[(long long)k * RANK + q] = x[q] * scale;
    if (lane == 0) inverse[k] = scale;
}

// S <- exp(S) in place, C <- c w / (tau sum) A, and the losses; a block of 256 threads a choice.
extern "C" __global__ void exp_rows(
    float *S, int n, const float *gathered, const float *weights, int *next, const int *at,
    float beta, float c, float *C, float *scale, double *loss) {
    __shared__ float parts[8];
    int k = blockIdx.x, b = gridDim.x, lane = threadIdx.x & 31;
    if (k == 0 && threadIdx.x == 0) *next = *at + 1;
    float *row = S + (long long)k * n, sum = 0;
    for (int j = threadIdx.x; j < n; j += blockDim.x) sum += row[j] = __expf(row[j] * beta);
    sum = total(sum);
    if (lane == 0) parts[threadIdx.x >> 5] = sum;
    __syncthreads();
    sum = 0;
    for (int part = 0; part < (blockDim.x >> 5); ++part) sum += parts[part];
    float w = weights[(long long)*at * b + k], p = c * beta * w / sum, own = 0;
    const float *a = gathered + (long long)k * RANK, *i = a + (long long)b * RANK;
    for (int q = threadIdx.x; q < RANK; q += blockDim.x) C[(long long)k * RANK + q] = p * a[q];
    if (threadIdx.x >= 32) return;
    for (int q = lane; q < RANK; q += 32) own += a[q] * i[q];
    own = total(own);
    if (lane == 0) {
        scale[k] = p;
        atomicAdd(loss, (double)(w * (c * logf(sum) - beta * own)));
    }
}

// Of dot products: a P a' of the users and of the items, and the former by scale.
extern "C" __global__ void levers(
    const float *gathered, const float *P, const float *scale, int b, float *lever, float *mass) {
    int lane = threadIdx.x & 31, k = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (k >= 2 * b) return;
    float x[PIECES], h[PIECES], found = 0;
    for (int piece = 0; piece < PIECES; ++piece) {
        int q = lane + 32 * piece;
        x[piece] = q < RANK ? gathered[(long long)k * RANK + q] : 0.0f;
    }
    times(x, k < b ? P : P + RANK * RANK, h);
    for (int piece = 0; piece < PIECES; ++piece) found += x[piece] * h[piece];
    found = total(found);
    if (lane) return;
    lever[k] = found;
    if (k < b) mass[k] = found * scale[k];
}

// The gradient of every row, and the step along it. For cosines the part along the row is taken out
// and the rest divided by the row's length; with dot products there is a ridge, and a step is divided
// by 1 + its own curvature. Rows may repeat.
extern "C" __global__ void descend(
    float *X, const int *rows, const int *at, int count, int b, const float *G, const float *P,
    const float *gathered, const float *inverse, const float *scale, const float *weights,
    const float *alphas, float beta, float ridge, const float *lever, const float *curvature) {
    int lane = threadIdx.x & 31, k = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (k >= count) return;
    const float *g = G + (long long)k * RANK, *a = gathered + (long long)k * RANK, *z = a;
    float s = k < b ? scale[k] : 1.0f, w = 0, along = 0, over = 1, alpha = alphas[*at];
    if (k < 2 * b) {
        w = weights[(long long)*at * b + (k < b ? k : k - b)];
        z = gathered + (long long)(k < b ? k + b : k - b) * RANK;
    }
    float found[PIECES], h[PIECES];
    bool sums = k < b || k >= 2 * b;
    for (int piece = 0; piece < PIECES; ++piece) {
        int q = lane + 32 * piece;
        bool in = q < RANK;
        found[piece] = in ? (sums ? s * g[q] : 0.0f) - beta * w * z[q] : 0.0f;
        along += in ? found[piece] * a[q] : 0.0f;
    }
    if (COSINE) {
        along = total(along);
        over = inverse[k];
    } else {
        float own = k < 2 * b ? w * (beta * beta * lever[k < b ? k + b : k - b] + ridge)
                              : beta * curvature[k - 2 * b];
        along = -ridge * w;
        over = 1.0f / (1.0f + alpha * own);
    }
    for (int piece = 0; piece < PIECES; ++piece) {
        int q = lane + 32 * piece;
        if (q < RANK) found[piece] = (found[piece] - along * a[q]) * over;
    }
    times(found, k < b ? P + RANK * RANK : P, h);
    float *x = X + (long long)rows[(long long)*at * count + k] * LD;
    for (int piece = 0; piece < PIECES; ++piece)
        if (lane + 32 * piece < RANK) atomicAdd(x + lane + 32 * piece, -alpha * h[piece]);
}
