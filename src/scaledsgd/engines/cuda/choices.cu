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

// The softmax: a warp a row. `gather` takes rows and, for cosines, divides them by their length.
extern "C" __global__ void gather(
    const float *X, const int *rows, int count, float *out, float *inverse) {
    int lane = threadIdx.x & 31, b = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (b >= count) return;
    const float *x = X + (long long)rows[b] * LD;
    float length = 0;
    for (int q = lane; q < RANK; q += 32) length += x[q] * x[q];
    float scale = COSINE ? rsqrtf(total(length) + 1e-20f) : 1.0f;
    for (int q = lane; q < RANK; q += 32) out[(long long)b * RANK + q] = x[q] * scale;
    if (lane == 0) inverse[b] = scale;
}

// S <- exp(S) in place, C <- c w / (tau sum) A, and the losses; a block of 256 threads a row.
extern "C" __global__ void exp_rows(
    float *S, int count, int n, const float *A, const float *B, const float *weights,
    float beta, float c, float *C, float *scale, double *loss) {
    __shared__ float parts[8];
    int b = blockIdx.x, lane = threadIdx.x & 31;
    float *row = S + (long long)b * n, sum = 0;
    for (int j = threadIdx.x; j < n; j += blockDim.x) sum += row[j] = __expf(row[j] * beta);
    sum = total(sum);
    if (lane == 0) parts[threadIdx.x >> 5] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < (blockDim.x >> 5); ++k) sum += parts[k];
    float w = weights[b], p = c * beta * w / sum, own = 0;
    const float *a = A + (long long)b * RANK, *i = B + (long long)b * RANK;
    for (int q = threadIdx.x; q < RANK; q += blockDim.x) C[(long long)b * RANK + q] = p * a[q];
    if (threadIdx.x >= 32) return;
    for (int q = lane; q < RANK; q += 32) own += a[q] * i[q];
    own = total(own);
    if (lane == 0) {
        scale[b] = p;
        atomicAdd(loss, (double)(w * (c * logf(sum) - beta * own)));
    }
}

// G <- s G - o Z for a row's own scale s (1 without one) and o = weight / tau; then, for cosines, the
// part along A is taken out and the rest divided by the row's length.
extern "C" __global__ void combine(
    float *G, int count, const float *scale, const float *weights, float beta, const float *Z,
    const float *A, const float *inverse) {
    int lane = threadIdx.x & 31, b = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (b >= count) return;
    float *g = G + (long long)b * RANK, s = scale ? scale[b] : 1.0f, along = 0;
    float o = Z ? beta * weights[b] : 0;
    const float *z = Z + (long long)b * RANK, *a = A + (long long)b * RANK;
    float found[PIECES];
    for (int k = 0; k < PIECES; ++k) {
        int q = lane + 32 * k;
        found[k] = q < RANK ? (s ? s * g[q] : 0.0f) - (Z ? o * z[q] : 0.0f) : 0.0f;
        along += q < RANK ? found[k] * a[q] : 0.0f;
    }
    along = COSINE ? total(along) : 0.0f;
    float over = COSINE ? inverse[b] : 1.0f;
    for (int k = 0; k < PIECES; ++k) {
        int q = lane + 32 * k;
        if (q < RANK) g[q] = (found[k] - along * a[q]) * over;
    }
}

// X[rows] -= alpha H; rows may repeat.
extern "C" __global__ void descend(
    float *X, const int *rows, int count, const float *H, float alpha) {
    int lane = threadIdx.x & 31, b = (blockIdx.x * blockDim.x + threadIdx.x) >> 5;
    if (b >= count) return;
    float *x = X + (long long)rows[b] * LD;
    for (int q = lane; q < RANK; q += 32) atomicAdd(x + q, -alpha * H[(long long)b * RANK + q]);
}
