"""A large matrix from hardly more entries than numbers: seconds, and the error of the whole.

python benchmarks/large.py 100000 --c 1.5
"""

import argparse
import time

import numpy as np

from scaledsgd import MatrixCompleter, Observations


def problem(d: int, rank: int, c: float, seed: int):
    """Factors (2, d, rank), and places (n, 2) of n = c rank (2 d - rank) entries drawn at random
    and some more, so that every row and every column has rank + 1: those with less nobody can
    tell."""
    rng = np.random.default_rng(seed)
    factors, n = rng.standard_normal((2, d, rank)), round(c * rank * (2 * d - rank))
    drawn = np.unique(rng.integers(0, d * d, n + n // 50))
    drawn = rng.permutation(drawn)[:n]
    places = np.stack(np.divmod(drawn, d), axis=1)
    for side in (0, 1):
        lacking = np.maximum(0, rank + 1 - np.bincount(places[:, side], minlength=d))
        more = np.empty((lacking.sum(), 2), np.int64)
        more[:, side] = np.repeat(np.arange(d), lacking)
        more[:, 1 - side] = rng.integers(0, d, len(more))
        places = np.concatenate([places, more])
    return factors, places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("d", type=int)
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--c", type=float, default=1.5, help="entries over rank (2 d - rank)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    (L, R), places = problem(asked.d, asked.rank, asked.c, asked.seed)
    i, j = places.T
    seen = Observations.pairs(i, j, np.einsum("nr,nr->n", L[i], R[j]), shape=(asked.d, asked.d))
    model = MatrixCompleter(asked.rank, random_state=asked.seed, n_jobs=asked.jobs)
    clock = time.perf_counter(), time.process_time()
    model.fit(seen)
    seconds, spent = time.perf_counter() - clock[0], time.process_time() - clock[1]
    rows, columns = np.random.default_rng(1).integers(0, asked.d, (2, 100_000))
    truth = np.einsum("nr,nr->n", L[rows], R[columns])
    error = np.linalg.norm(model.predict((rows, columns)) - truth) / np.linalg.norm(truth)
    print(f"d = {asked.d:,}, {len(i):,} entries: error {error:.1e}, {model.history_.stopped}, "
          f"{seconds:.1f} s, {spent:.1f} s of the processor")  # fmt: skip


if __name__ == "__main__":
    main()
