// Rows of M and the comparisons drawn from them, as in ratings.py. Defined ahead of this file:
// value_t, the type of a rating; SHRUNK and UNION and SIGNED, what becomes of the products.

struct lists {
    const long long* start;
    const int* index;
    const value_t* value;
};

// The next state of SplitMix64, and its number in (0, 1].
__device__ double uniform(unsigned long long& state) {
    state += 0x9E3779B97F4A7C15ull;
    unsigned long long z = state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return (double(z >> 11) + 1.0) * 0x1p-53;
}

// Row i of M but for the length of column i. The raters of i are shared out among the warps, and a
// warp reads the history of its rater side by side.
__device__ void similar(lists by_item, lists by_user, const double* weight, const double* raters,
                        double shrinkage, double tie, long long d, int i, double* row,
                        double* common) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (long long j = threadIdx.x; j < d; j += blockDim.x) {
        row[j] = 0.0;
        if (SHRUNK) common[j] = 0.0;
    }
    __syncthreads();
    for (long long p = by_item.start[i] + warp; p < by_item.start[i + 1]; p += warps) {
        const int user = by_item.index[p];
        const double stars = by_item.value[p];
        for (long long s = by_user.start[user] + lane; s < by_user.start[user + 1]; s += 32) {
            atomicAdd(row + by_user.index[s], stars * by_user.value[s]);
            if (SHRUNK) atomicAdd(common + by_user.index[s], 1.0);
        }
    }
    __syncthreads();
    for (long long j = threadIdx.x; j < d; j += blockDim.x) {
        double m = row[j] * weight[j];
        if (UNION) m /= raters[i] + raters[j] - m;
        if (SHRUNK) m *= common[j] / (common[j] + shrinkage);
        if (SIGNED && fabs(m) * weight[i] <= tie) m = 0.0;
        row[j] = m;
    }
    __syncthreads();
}

// The comparisons of the rows first .. first + count, each row's in order at a place of its own with
// `room` for so many; y is 2 where a pair is not comparable. `drawn` tells how many pairs were.
extern "C" __global__ void compare(
    const long long* item_start, const int* item_user, const value_t* item_value,
    const long long* user_start, const int* user_item, const value_t* user_value,
    const double* weight, const double* raters, double shrinkage, double tie, double gap,
    long long d, const int* rows, const unsigned long long* states, int count, int room,
    double* buffers, int* index, unsigned char* y, int* drawn) {
    __shared__ long long pairs[256];
    __shared__ int taken;
    const lists by_item{item_start, item_user, item_value};
    const lists by_user{user_start, user_item, user_value};
    double* row = buffers + blockIdx.x * d * (SHRUNK ? 2 : 1);
    for (int at = blockIdx.x; at < count; at += gridDim.x) {
        const int i = rows[at];
        similar(by_item, by_user, weight, raters, shrinkage, tie, d, i, row, row + d);
        unsigned long long state = states[at];
        long long pair = -1, base = 0;
        do {
            if (threadIdx.x == 0) {  // from one pair to the next, which only one can do
                for (taken = 0; taken < 256; ++taken) {
                    const double skip = floor(log(uniform(state)) * gap);
                    if (skip >= double(d * d - 1 - pair)) break;
                    pair += 1 + (long long)skip;
                    pairs[taken] = pair;
                }
            }
            __syncthreads();
            const int found = taken, t = threadIdx.x;
            if (t < found && base + t < room) {
                const long long place = at * (long long)room + base + t;
                const int j = int(pairs[t] / d), k = int(pairs[t] % d);
                const double a = row[j], b = row[k];
                index[place * 3] = j;
                index[place * 3 + 1] = k;
                index[place * 3 + 2] = i;
                y[place] = fabs(a - b) <= tie * (fabs(a) + fabs(b)) ? 2 : a > b;
            }
            base += found;
            __syncthreads();
            if (found < 256) break;
        } while (true);
        if (threadIdx.x == 0) drawn[at] = int(base);
        __syncthreads();
    }
}
