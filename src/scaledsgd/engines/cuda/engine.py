"""A GPU: samples run by the thousand, and the rows of X change by atomic adds."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.choices import Choices
from ...core.factors import Factors
from ...core.losses import Loss
from ...core.observations import Chunk, Observations
from ..base import Engine, Samples, SoftmaxRound, SquaredRound, residuals
from ..cpu.engine import CpuEngine
from . import choices as choice_rounds
from . import kernels as cuda_kernels
from . import samples as cuda_data
from .kernels import cupy

# Samples in flight do not see each other's steps. If k of them name the same row, they move it by
# the sum of what each would: a direction's error shrinks by k alpha P_q S_q / d in one go, which
# diverges past 2 and is slow long before. For the row that is named most, k is held so low that
# this stays below a fiftieth, which costs a few percent of an epoch at most (docs/gpu.md).
_CROWD = 0.02

# The second-level cache is the limit: more samples than these, or more threads on a multiprocessor,
# run no faster.
_ENOUGH = 16_384
_THREADS = 1024
_BLOCK = 256

_SHARE = 0.9  # of the free memory is ours: the rest is for CUDA's own buffers


class CudaEngine(Engine):
    """Runs rounds on the GPU that CuPy has chosen.

    in_flight : how many samples are worked on at the same time; by default what the data allows.
    memory : bytes of GPU memory to use; by default what is free.
    n_jobs : threads of the host, for what is computed there.
    """

    scored_at_once = 1 << 24  # a block costs a few launches, however few its samples are
    block_of_choices = 2  # times as many: a block costs six launches, whatever its size
    longest = 256  # a round of 32 d is over before the host has prepared the next

    def __init__(self, in_flight: int | None = None, memory: int | None = None, n_jobs: int = 1):
        why = cuda_kernels.unavailable()
        if why:
            raise ValueError(f"device='cuda': {why}")
        self.in_flight, self.memory, self._host = in_flight, memory, CpuEngine(n_jobs)
        self.repairs = 0
        self._busiest = 0.0
        self._choices: tuple = (None, ())
        self._blocks: choice_rounds.Blocks | None = None
        self._processors = cupy.cuda.Device().attributes["MultiProcessorCount"]

    @property
    def host(self) -> CpuEngine:
        return self._host

    def put(self, X: np.ndarray) -> Any:
        """X on the GPU, its rows a multiple of 16 bytes apart."""
        if X.ndim == 1:
            return cupy.asarray(X)
        d, r = X.shape
        if r > cuda_kernels.RANKS:
            raise ValueError(f"rank={r}: device='cuda' takes ranks up to {cuda_kernels.RANKS}")
        width = cuda_kernels.stride(r, X.dtype)
        # X itself, copies to fall back on, and the product of a change of basis.
        needed = 4 * d * width * X.itemsize
        if needed > self._room():
            raise MemoryError(
                f"factors of {d} x {r} need {needed / 1e9:.3g} GB, the GPU has "
                f"{self._room() / 1e9:.3g} GB to give: use device='cpu'"
            )
        held = cupy.zeros((d, width), X.dtype)
        held[:, :r] = cupy.asarray(X)
        return held[:, :r]

    def get(self, X: Any) -> np.ndarray:
        return X if isinstance(X, np.ndarray) else cupy.ascontiguousarray(X).get()

    local = get

    def finite(self, X: Any, index: Any) -> bool:
        if index.size < len(X):
            X = X[index].reshape(-1, X.shape[1])
        return bool(np.isfinite(self.gram(X)).all())

    def rows(self, X: Any, index: np.ndarray) -> np.ndarray:
        """The rows that an index names."""
        return X[cupy.asarray(index)].get()

    def set_rows(self, X: Any, index: np.ndarray, rows: np.ndarray) -> None:
        X[cupy.asarray(index)] = cupy.asarray(rows, X.dtype)

    def tally(
        self, factors: Factors, loss: Loss, data: Any, without: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(data.index, np.ndarray):
            return super().tally(factors, loss, data, without)
        d = len(factors.X)
        total, count = cupy.zeros(d), cupy.zeros(d)
        skipped = None if without is None else cupy.asarray(without)
        for start in range(0, len(data), cuda_data.CHUNK):
            part = slice(start, start + cuda_data.CHUNK)
            index, targets = data.index[part], data.targets[part]
            if skipped is not None:
                kept = ~skipped[index].any(axis=1)
                index, targets = index[kept], targets[kept]
            if not len(index):
                continue
            squares = residuals(self.scores(factors, index, loss), targets) ** 2
            for column in range(index.shape[1]):
                named = cupy.ascontiguousarray(index[:, column])
                total += cupy.bincount(named, squares, d)
                count += cupy.bincount(named, minlength=d)
        return total.get(), count.get()

    def naming(self, data: Any, rows: np.ndarray) -> Chunk:
        if isinstance(data.index, np.ndarray):
            return super().naming(data, rows)
        chosen, found = cupy.asarray(rows), []
        for start in range(0, len(data), cuda_data.CHUNK):
            part = slice(start, start + cuda_data.CHUNK)
            once = cupy.flatnonzero(chosen[data.index[part]].sum(axis=1) == 1)
            found.append((data.index[part][once].get(), data.targets[part][once].get()))
        return Chunk(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def samples(self, observations: Observations, shift: list[int], dtype, rng) -> Samples:
        """A shuffled training copy whose indices point into the stacked X: on the GPU if it fits
        there twice (once while it is moved), else in host memory."""
        index, targets = observations.index, observations.targets
        dtype = _type(dtype, targets)
        each = index.shape[1] * index.itemsize + np.dtype(dtype).itemsize
        if 2 * each * len(targets) <= self._room():
            moved = _sent(index)
            moved += cupy.array(shift, index.dtype)
            data = cuda_data.Samples(moved, _sent(targets).astype(dtype, copy=False), rng)
        else:
            slab = min(cuda_data.CHUNK, self._room() // (4 * each))
            if slab == 0:
                raise MemoryError("the GPU has no memory left for samples: use device='cpu'")
            given = Chunk(index, targets.astype(dtype, copy=False))
            data = cuda_data.Streamed(given, shift, rng, slab)
        seen = Chunk(data.index, data.targets)
        rows = max(shift) + max(observations.shape)
        self._busiest = max(self._busiest, cuda_data.busiest(seen, rows))
        return data

    def run(
        self, factors: Factors, P: np.ndarray, rates: np.ndarray, loss: Loss, samples: Chunk,
        cap: float = np.inf,
    ) -> float:  # fmt: skip
        """One pass with a frozen diagonal P; returns the sum of squared slopes."""
        X, r, n = self._laid_out(factors), factors.rank, len(samples)
        index = cupy.asarray(samples.index, order="C")
        weighted = samples.targets.dtype.kind == "c"
        targets = cupy.asarray(samples.targets, _type(X.dtype, samples.targets))
        padding = np.zeros(cuda_kernels.stride(r, X.dtype) - r)
        frozen = _by_value(np.concatenate([P, padding, rates, [cap]]).astype(X.dtype))
        total = cupy.zeros(1)
        how = X.dtype, index.dtype, cap < np.inf, weighted
        kernel = cuda_kernels.step("run", loss.name, r, *how)
        shape = self._launch(min(n, self.flight(factors, P, rates, loss)), factors)
        kernel(*shape, (X, frozen, index, targets, np.int64(n), total))
        return float(total.get()[0])

    def run_squared(
        self, factors: Factors, choices: Choices, order: np.ndarray, round: SquaredRound
    ) -> float:
        U, V = self._sides(factors)
        return choice_rounds.run_squared(U, V, self._sent(choices), order, round)

    def run_softmax(
        self, factors: Factors, choices: Choices, order: np.ndarray, negatives: np.ndarray,
        round: SoftmaxRound,
    ) -> float:  # fmt: skip
        self._laid_out(factors)
        self._blocks, loss = choice_rounds.run_softmax(
            self._blocks, factors.X, factors.begin, self._sent(choices), order, negatives, round
        )
        return loss

    def squares(self, X: Any, weights: np.ndarray) -> np.ndarray:
        return choice_rounds.squares(X, weights)

    def set_lengths(self, X: Any, length: float, rng: np.random.Generator) -> None:
        choice_rounds.set_lengths(X, length, rng)

    def _sides(self, factors: Factors) -> list[Any]:
        self._laid_out(factors)
        return list(factors.sides)

    def _sent(self, choices: Choices) -> tuple:
        """The choices on the GPU, sent once."""
        if self._choices[0] is not choices:
            self._choices = choices, choice_rounds.sent(choices)
        return self._choices[1]

    def scores(self, factors: Factors, index: Any, loss: Loss) -> Any:
        """z of every sample, where the index is."""
        X = self._laid_out(Factors(factors.X))
        there = cupy.asarray(index, order="C")
        out = cupy.empty(len(there), X.dtype)
        if len(there):
            kernel = cuda_kernels.step("scores", loss.name, factors.rank, X.dtype, there.dtype)
            shape = self._launch(len(there), factors)
            kernel(*shape, (X, there, np.int64(len(there)), out))
        return out.get() if isinstance(index, np.ndarray) else out

    def gram(self, X: Any, exact: bool = True) -> np.ndarray:
        """X^T X, in float64 in any case."""
        d, r = X.shape
        kernel = cuda_kernels.refresh("gram", r, _width(X), X.dtype)
        G, squares = cupy.zeros((r, r)), (-(-r // cuda_kernels.tile(r))) ** 2
        # Eight blocks fit a multiprocessor; fewer do where the rows are few (16 at a time or more).
        blocks = max(1, min(8 * self._processors, d // 16))
        kernel((blocks, squares), (256,), (X, np.int64(d), G))
        return G.get()

    def transform(self, X: Any, T: np.ndarray) -> None:
        """X <- X T, in place."""
        d, r = X.shape
        if r <= cuda_kernels.SMALL:
            kernel = cuda_kernels.refresh("turn", r, _width(X), X.dtype)
            kernel((-(-d // 256),), (256,), (X, _by_value(T.astype(X.dtype)), np.int64(d)))
            return
        # The rows with the zeros after them are one piece of memory, which cuBLAS takes as it is.
        whole = cupy.ndarray((d, _width(X)), X.dtype, X.data)
        padded = np.zeros((_width(X), _width(X)), X.dtype)
        padded[:r, :r] = T
        whole[...] = whole @ cupy.asarray(padded)

    def flight(self, factors: Factors, P: np.ndarray, rates: np.ndarray, loss: Loss) -> int:
        """How many samples may be in flight without a row moving too far."""
        if self.in_flight is not None:
            return self.in_flight
        # How hard a mention pulls at a direction: dz/dx_m is a sum over the sample's rows, each of
        # them as large as S / d. P S is 1 where nothing is damped, and where something is, S may
        # grow until it is no longer: the round is planned for that. Plain SGD has any P S.
        others = np.array([factors.shape[1 - side] for side in loss.sides])
        a, b = np.array(loss.a), np.array(loss.b)
        spread = ((np.outer(a, b) + np.outer(b, a)) ** 2).sum(axis=1)
        undamped = max(1.0, float((P * factors.spectrum).max())) if factors.spectrum.any() else 1.0
        pull = loss.curvature * undamped * float((rates / others * spread).max())
        mentions = self._busiest or loss.arity / min(factors.shape)
        return int(np.clip(_CROWD / max(pull * mentions, 1e-9), 1, _ENOUGH))

    def _laid_out(self, factors: Factors) -> Any:
        """X as `put` lays it out."""
        X = factors.X
        width = cuda_kernels.stride(X.shape[1], X.dtype) * X.itemsize
        if not isinstance(X, cupy.ndarray) or X.strides != (width, X.itemsize):
            X = factors.X = self.put(X)
        return X

    def _launch(self, groups: int, factors: Factors) -> tuple[tuple[int], tuple[int]]:
        """Grid and block for at most that many samples at a time."""
        lanes = cuda_kernels.lanes(factors.rank, factors.X.dtype)
        threads = min(groups * lanes, self._processors * _THREADS)
        if threads < 32:
            return (1,), (threads,)
        # Few threads are spread thin, over as many multiprocessors as there are.
        block = _BLOCK if threads >= self._processors * _BLOCK else 32
        return (threads // block,), (block,)

    def _room(self) -> int:
        free = cupy.cuda.Device().mem_info[0] + cupy.get_default_memory_pool().free_bytes()
        return int(_SHARE * (free if self.memory is None else min(free, self.memory)))


def _sent(array: Any) -> Any:
    """A copy on the GPU. CuPy's own would go through page-locked memory, and a second into getting
    as much of that as a large array needs."""
    if isinstance(array, cupy.ndarray):
        return array.copy()
    there = cupy.empty(array.shape, array.dtype)
    there.set(np.ascontiguousarray(array))
    return there


def _type(dtype, targets: Any) -> np.dtype:
    """Of targets, which are complex where they have weights."""
    return np.result_type(dtype, np.complex64) if targets.dtype.kind == "c" else np.dtype(dtype)


def _by_value(array: np.ndarray) -> np.ndarray:
    """For CuPy to pass with the launch: as one item of that many bytes."""
    return np.ascontiguousarray(array).reshape(-1).view(np.dtype((np.void, array.nbytes)))


def _width(X: Any) -> int:
    """Numbers from one row to the next."""
    return X.strides[0] // X.itemsize


def describe() -> str:
    """The GPU in a few words, or why there is none."""
    why = cuda_kernels.unavailable()
    if why:
        return why
    device = cupy.cuda.Device()
    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
    free, total = (size / 2**30 for size in device.mem_info)
    return f"{name}, {free:.0f} of {total:.0f} GiB free, CuPy {cupy.__version__}"
