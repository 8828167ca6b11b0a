// The order of samples, without a table of it. Defined ahead of this file: real, row_t, ARITY,
// BLOCK (consecutive samples that travel together) and HAND (blocks that are interleaved).

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

// Samples first .. first + n of the order: blocks are drawn in random order, and the blocks of a
// hand interleaved, each begun at its own turn. `first` is a multiple of HAND * BLOCK.
extern "C" __global__ void deal(const row_t* index, const real* targets, row_t* dealt_index,
                                real* dealt_targets, long long m, long long first, unsigned n,
                                unsigned long long key) {
    const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    const long long blocks = m / BLOCK;
    long long from = first + t;
    if (from < blocks * BLOCK) {  // fewer than a block are left over, and come last
        const long long hand = first / BLOCK + t / (HAND * BLOCK) * HAND;
        const unsigned held = unsigned(min((long long)HAND, blocks - hand));
        const unsigned card = t % (HAND * BLOCK);
        const long long block = permuted(hand + card % held, blocks, key);
        from = block * BLOCK + (card / held + mixed(unsigned(block), unsigned(key))) % BLOCK;
    }
    for (int c = 0; c < ARITY; ++c) dealt_index[t * (long long)ARITY + c] = index[from * ARITY + c];
    dealt_targets[t] = targets[from];
}
