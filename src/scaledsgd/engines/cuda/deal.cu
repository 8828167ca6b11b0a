// The order of samples, without a table of it. Defined ahead of this file: real, row_t, ARITY, and
// GROUP, the number of blocks that are interleaved. A block is 32 consecutive samples.

__device__ unsigned mixed(unsigned v, unsigned key) {  // a bijection of 32 bits, well stirred
    v = (v ^ key) * 0x9E3779B1u;
    v = (v ^ v >> 15) * 0x85EBCA77u;
    return v ^ v >> 13;
}

// A permutation of 0 .. n - 1 that the key names: a Feistel network on as many bits as n needs,
// walked on while it leaves the range (less than two turns on average).
__device__ long long permuted(long long at, long long n, unsigned long long key) {
    const int bits = n > 2 ? 64 - __clzll(n - 1) : 2, low = bits / 2;
    const unsigned low_mask = (1u << low) - 1, high_mask = (1u << (bits - low)) - 1;
    do {
        unsigned a = unsigned(at) & low_mask, b = unsigned(at >> low);
        for (unsigned turn = 0; turn < 4; ++turn) {
            a ^= mixed(b, unsigned(key) + 2 * turn) & low_mask;
            b ^= mixed(a, unsigned(key >> 32) - 2 * turn) & high_mask;
        }
        at = (long long)b << low | a;
    } while (at >= n);
    return at;
}

// Every sample to a place of its own: thorough, and a cache miss a sample.
extern "C" __global__ void shuffle(const row_t* index, const real* targets, row_t* dealt_index,
                                   real* dealt_targets, long long m, unsigned long long key) {
    const long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (t >= m) return;
    const long long from = permuted(t, m, key);
    for (int c = 0; c < ARITY; ++c) dealt_index[t * ARITY + c] = index[from * ARITY + c];
    dealt_targets[t] = targets[from];
}

// One turn of the cards: sample t of the front half changes places with another of the back half, or
// does not, by a bit of its own.
extern "C" __global__ void riffle(row_t* index, real* targets, long long m, unsigned turn,
                                  unsigned key) {
    const long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x, half = m / 2;
    if (t >= half || !(mixed(unsigned(t / 32), key) >> t % 32 & 1)) return;
    const long long s = m - half + (t + turn) % half;
    for (int c = 0; c < ARITY; ++c) {
        const row_t kept = index[t * ARITY + c];
        index[t * ARITY + c] = index[s * ARITY + c];
        index[s * ARITY + c] = kept;
    }
    const real kept = targets[t];
    targets[t] = targets[s];
    targets[s] = kept;
}

// How often each row is named.
extern "C" __global__ void count(const row_t* index, long long n, int* counts) {
    const long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (t < n) atomicAdd(counts + index[t], 1);
}

// Samples first .. first + count of an order in which blocks are drawn at random and the blocks of a
// group interleaved, each begun at its own turn. Here 32 warps take up 32 blocks and put them down
// again across, so that memory is read and written in whole lines. `first` is a multiple of a group.
extern "C" __global__ void __launch_bounds__(1024)
deal(const row_t* index, const real* targets, row_t* dealt_index, real* dealt_targets, long long m,
     long long first, long long count, unsigned long long key) {
    __shared__ row_t rows[32][32 * ARITY + 1];  // one more, so that columns lie in other banks
    __shared__ real seen[32][33];
    __shared__ unsigned turns[32];
    const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long blocks = m / 32;
    const long long group = blockIdx.x / (GROUP / 32) * GROUP;
    const unsigned held = unsigned(min((long long)GROUP, blocks - first / 32 - group));
    const unsigned begin = blockIdx.x % (GROUP / 32) * 32;
    if (begin + warp < held) {
        const long long block = permuted(first / 32 + group + begin + warp, blocks, key);
        for (int e = lane; e < 32 * ARITY; e += 32) rows[warp][e] = index[block * 32 * ARITY + e];
        seen[warp][lane] = targets[block * 32 + lane];
        if (lane == 0) turns[warp] = mixed(unsigned(block), unsigned(key));
    }
    __syncthreads();
    const long long place = group * 32 + warp * (long long)held + begin;
    for (int e = lane; e < 32 * ARITY; e += 32) {
        const unsigned of = e / ARITY, c = e % ARITY;
        if (begin + of < held)
            dealt_index[place * ARITY + e] = rows[of][(warp + turns[of]) % 32 * ARITY + c];
    }
    if (begin + lane < held) dealt_targets[place + lane] = seen[lane][(warp + turns[lane]) % 32];
    // Fewer than a block are left over, and come last.
    const long long t = blocks * 32 + threadIdx.x;
    if (blockIdx.x == 0 && t < m && t >= first && t < first + count) {
        for (int c = 0; c < ARITY; ++c) dealt_index[(t - first) * ARITY + c] = index[t * ARITY + c];
        dealt_targets[t - first] = targets[t];
    }
}
