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
