"""Who runs the samples of a round: CPU threads here, a GPU or a cluster by the same calls."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..core.choices import Choices
from ..core.factors import Factors
from ..core.linalg import Algebra
from ..core.losses import LOSSES, Loss, weight
from ..core.observations import Chunk, Observations


class Portion(Protocol):
    """Samples of an epoch that come next, in whatever form their engine takes them: a `Chunk` of
    arrays, or only their number where the engine holds the order itself."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Portion: ...


class Samples(Protocol):
    """A training copy of the observations, where the engine wants it.

    index : (n, arity) rows of the stacked X, as an array of the engine's.
    targets : (n,).
    """

    index: np.ndarray
    targets: Any
    unit: float = 1.0  # by what targets were multiplied since

    def __len__(self) -> int: ...

    def epoch(self, rng: np.random.Generator) -> Iterator[Portion]:
        """Every sample once, in an order drawn from `rng`. Each portion is valid until the next
        one; the trainer cuts it where a round ends, and runs its slices from front to back."""
        ...

    def fair(self, count: int) -> Chunk:
        """So many samples from all over: the first of them, if they lie in random order."""
        return Chunk(self.index[:count], self.targets[:count])

    def rescale(self, by: float) -> None:
        """Multiply the targets; weights stay what they are."""
        y = self.targets.real
        y *= by
        self.unit *= by

    def returned(self, observations: Observations, shift: list[int]) -> Observations:
        """What this copy was made of, in units of now. Args: observations, which are no longer what
        they were if the engine was free to reorder them."""
        if self.unit == 1.0:
            return observations
        targets = observations.targets.copy()
        targets.real *= self.unit
        return observations.of(Chunk(observations.index, targets))


class AnyChoices(Protocol):
    """Who chose what, wherever it lies: `Choices` here, or in parts on the machines of a cluster.
    What `portions` and `negatives` give goes to the engine's runs as it is."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def __len__(self) -> int: ...

    def row_weights(self) -> list[np.ndarray]:
        """The sum of the weights of each user (rows,) and of each item (columns,)."""
        ...

    def gathered(self, most: int, seed: int) -> Choices:
        """Choices for one process to look at: all, or those of some users, about `most`."""
        ...

    def portions(
        self, rng: np.random.Generator, parts: int, block: int = 1, weighted: bool = False
    ) -> Iterator[Any]:
        """All choices in a random order, in so many parts of whole blocks; `weighted`, drawn as
        often as their weights say."""
        ...

    def negatives(self, pool: np.ndarray, blocks: int, count: int, rng) -> Any:
        """So many items of the pool for each block."""
        ...


_NO_CHOICES = "this engine does not learn from choices"


class SquaredRound(NamedTuple):
    """What is frozen for a round of the whole-data squared loss. Users first in every pair."""

    theta: float
    seen: list[np.ndarray]  # (rows,), (columns,): the sum of the weights of a row's choices
    ridges: list[np.ndarray]  # (rows,), (columns,)
    grams: np.ndarray  # (2, r): alpha_0 times the diagonal of a side's Gram
    means: np.ndarray  # (2, r): x_q^2 averaged over the choices


class SoftmaxRound(NamedTuple):
    """What is frozen for a round of the sampled softmax."""

    P: np.ndarray  # (2, r, r): the damped inverse Gram of the users, and of the items
    alphas: tuple[float, float]  # the step at the beginning and at the end
    block: int  # choices that share their negatives
    tau: float
    c: float
    cosine: bool
    ridge: float


class Engine(Algebra, Protocol):
    """One machine, or a cluster that looks like one. Between `put` and `get` the factors are where
    it computes: there X is an array of the engine's own kind, (d, r)."""

    repairs: int  # how often P had to be inverted anew from X
    longest: int  # the samples of a round at most, in multiples of d
    scored_at_once: int = 1 << 16  # samples: their temporaries stay in the cache
    block_of_choices: int = 1  # times the choices that share their negatives elsewhere
    groups_of_items: int = 1  # of which a choice meets one an epoch
    checkpoint: str | None = None  # the folder for the state of a run, where one is kept

    def divided(self, count: int) -> list[Engine]:
        """Engines that run so many independent trainings at a time, each with its share of this
        one's threads; this one alone, where it runs one after the other sooner."""
        return [self]

    @property
    def host(self) -> Any:
        """The threads of this process, as an engine: for what is small, or tried now and then."""
        return open_engine("cpu")

    def fetched(self, observations: Any) -> Observations | None:
        """The observations as arrays of this process; None where they are too many for it."""
        return observations

    def put(self, X: np.ndarray) -> Any:
        """Args: X (d, r), or one number a column (r,). Returns: the same where the engine
        computes."""
        ...

    def get(self, X: Any) -> Any:
        """X as `put` takes it; it may stay where it is until `local` asks for it."""
        ...

    def local(self, X: Any) -> np.ndarray:
        """X as an array of this process."""
        return np.asarray(X)

    def rows(self, X: Any, index: np.ndarray) -> np.ndarray:
        """Args: index, any shape. Returns: those rows of X here, (*index.shape, r)."""
        ...

    def set_rows(self, X: Any, index: np.ndarray, rows: np.ndarray) -> None:
        """X[index] <- rows. Args: index (n,); rows (n, r), here."""
        X[index] = rows

    def tally(
        self, factors: Factors, loss: Loss, data: Any, without: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """How far off every row is. Args: data, the training copy; without (d,), whether a sample
        that names the row is left out. Returns: the sum of the squared residuals of its samples,
        and how many they are, (d,) each, here."""
        d = len(factors.X)
        total, count = np.zeros(d), np.zeros(d)
        for index, targets in _parts(data, max(_TALLIED, d)):
            if without is not None:
                kept = ~without[index].any(axis=1)
                index, targets = index[kept], targets[kept]
            squares = residuals(self.scores(factors, index, loss), targets) ** 2
            for column in index.T:
                total += np.bincount(column, squares, minlength=d)
                count += np.bincount(column, minlength=d)
        return total, count

    def naming(self, data: Any, rows: np.ndarray) -> Chunk:
        """Args: data, the training copy; rows (d,), booleans. Returns: the samples that name one of
        the rows once, and no other of them, here."""
        found = []
        for index, targets in _parts(data, max(_TALLIED, len(rows))):
            once = rows[index].sum(axis=1) == 1
            found.append((index[once], targets[once]))
        return Chunk(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def samples(self, observations: Observations, shift: list[int], dtype, rng) -> Samples:
        """A shuffled training copy. Args: shift, what is added to each column of the index so that
        it points into the stacked X."""
        ...

    def open_files(
        self, files, columns: tuple, target: str | None, loss: Loss, symmetric: bool
    ) -> Any:
        """Observations that stay in their files. Args: files, patterns or paths; columns, their
        names in the order of the loss's table; target, the name of the targets' column."""
        raise ValueError(f"{files}: several files need a cluster: give engine=RayEngine(...)")

    def run(
        self, factors: Factors, P: np.ndarray, rates: np.ndarray, loss: Loss, samples: Any,
        cap: float = np.inf,
    ) -> float:  # fmt: skip
        """Step once on each of the samples, a `Portion` of this engine's or a `Chunk`.

        Args: P (r,), the frozen diagonal; rates (arity,), alpha for each row of a sample; cap, the
        share of its residual that a step may undo. Returns: the sum of squared slopes."""
        ...

    def run_sampled(
        self, factors: Factors, P: np.ndarray, eta: float, rates: np.ndarray, loss: Loss,
        samples: Any,
    ) -> float:  # fmt: skip
        """The same with the paper's P (sides, r, r), brought up to date in place by each sample."""
        raise ValueError("refresh='sample' runs on device='cpu'")

    def inverse(self, factors: Factors, eta: float) -> np.ndarray:
        """(X^T X + eta I)^-1 of each side, (sides, r, r)."""
        raise ValueError("refresh='sample' runs on device='cpu'")

    def open_events(self, files, names: tuple, half_life: float | None, heaviest: float) -> Any:
        """Choices that stay in their files, as `AnyChoices` with the `ids` of users and items and
        the `unit`, the mean weight.

        Args: files, patterns or paths; names, of the columns of user, item, weight and time, the
        last two or None; half_life, of a weight, in units of the time; heaviest, how many times
        the mean a weight counts at most."""
        raise ValueError(f"{files}: several files need a cluster: give engine=RayEngine(...)")

    def held(self, choices: Choices) -> AnyChoices:
        """The choices where the engine wants them."""
        return choices

    def start_choices(self, shape, rank: int, **how) -> Factors:
        """Gaussian factors for choices of that shape, where the engine computes."""
        factors = Factors.start(shape, rank, **how)
        factors.X = self.put(factors.X)
        return factors

    def run_squared(self, factors: Factors, choices: Any, order: Any, round: SquaredRound) -> float:
        """Step once on each of the choices, in the basis in which both Grams are diagonal.

        Args: order, some of them as `choices.portions` gives them: positions (n,) where the choices
        are here. Returns: the sum of their squared residuals."""
        raise ValueError(_NO_CHOICES)

    def run_softmax(
        self, factors: Factors, choices: Any, order: Any, negatives: Any, round: SoftmaxRound
    ) -> float:
        """Step once on each block of the choices.

        Args: order, some of them, as above; negatives, as `choices.negatives` gives them: items
        that each block shares, (blocks, N). Returns: the sum of their losses."""
        raise ValueError(_NO_CHOICES)

    def run_bpr(
        self, factors: Factors, choices: Any, order: Any, negatives: Any, P: np.ndarray,
        rates: np.ndarray,
    ) -> float:  # fmt: skip
        """Compare each of the choices with an item in one step. Args: as above, with negatives
        (n, 1). Returns: the sum of squared slopes."""
        begin, drawn = factors.begin, np.asarray(negatives)[:, 0]
        columns = choices.items[order] + begin, drawn + begin, choices.users[order]
        seen = Chunk(np.stack(columns, axis=1), np.ones(len(order), factors.X.dtype))
        return self.run(factors, P, rates, LOSSES["bpr"], seen)

    def clear(self, X: Any, rows: np.ndarray) -> None:
        """Set rows to zero. Args: rows (d,), whether each is."""
        X[self.put(rows)] = 0

    def scores(self, factors: Factors, index: Any, loss: Loss) -> Any:
        """Args: index (n, arity). Returns: z of every sample (n,), where the index is."""
        ...

    def finite(self, X: Any, index: np.ndarray) -> bool:
        """Whether the rows that an index names are all finite."""
        ...

    def packed(self, factors: Factors) -> Factors:
        """The factors without a gap, where one would be in the way."""
        return factors

    def close(self) -> None:
        """Let go of what is held elsewhere."""

    def write(self, folder: Path, arrays: list[Any], stem: str) -> list[list[str]]:
        """Each X to files of the folder. Returns: the names of those of each."""
        raise ValueError("the state of a run is kept by a cluster: give engine=RayEngine(...)")

    def read(self, folder: Path, names: list[str], like: Any) -> Any:
        """The X that `write` wrote to files of these names."""
        raise ValueError("the state of a run is kept by a cluster: give engine=RayEngine(...)")

    def start(self, shape, rank: int, loss: Loss, **how) -> Factors:
        """Gaussian factors for a matrix of that shape, wherever they are best drawn."""
        return Factors.start(shape, rank, **how)

    def squares(self, X: Any, weights: np.ndarray) -> np.ndarray:
        """Args: weights (k, d). Returns: x_q^2 summed over the rows with each of them, (k, r)."""
        raise ValueError(_NO_CHOICES)

    def set_lengths(self, X: Any, length: float, rng: np.random.Generator) -> None:
        """Make every row as long as told; rows of zeros are drawn."""
        raise ValueError(_NO_CHOICES)

    def scale(self, X: Any, columns: np.ndarray) -> None:
        """Multiply every column by its number."""
        X *= self.put(columns.astype(X.dtype))

    def shrink(self, X: Any, rows: Any, columns: np.ndarray) -> None:
        """What a ridge does to rows of these weights: X_iq <- X_iq / (1 + rows_i columns_q)."""
        X /= 1 + rows[:, None].astype(X.dtype) * self.put(columns.astype(X.dtype))

    def sow(self, factors: Factors, start: int, stop: int, scale: float, key: list[int]) -> None:
        """Fresh columns from `start` on, as small as told on the geometric mean of both sides, and
        zeros from `stop`."""
        factors.X[:, start:] = 0
        rng = np.random.default_rng(key)
        geo = np.sqrt(np.prod(np.sqrt(factors.shape)))
        for side in factors.sides:
            fresh = (
                scale * geo / np.sqrt(len(side)) * rng.standard_normal((len(side), stop - start))
            )
            side[:, start:stop] = self.put(fresh.astype(factors.X.dtype))


_TALLIED = 1 << 16  # samples at a time, or d: a sum for every row costs nothing beside them


def residuals(z: Any, targets: Any) -> Any:
    """z - y, times the root of the weight that y has."""
    return (z.astype(np.float64) - targets.real) * np.sqrt(weight(targets))


def _parts(data: Samples, size: int) -> Iterator[Chunk]:
    """The samples of a training copy that lies here, so many at a time."""
    for start in range(0, len(data), size):
        part = slice(start, start + size)
        yield Chunk(data.index[part], data.targets[part])


# A GPU has to be woken, and CuPy and the kernels loaded: about two seconds, in which one core runs
# so many samples (25 ns each).
_PAYS = 80_000_000


def open_engine(device: str = "cpu", n_jobs: int = 1, samples: float = inf) -> Engine:
    """The engine for a device. Compilers load here, not when the package is imported.

    `samples` is how many will be run, all epochs together: "auto" takes the GPU if there is one and
    if they are enough to pay for its start.
    """
    if device not in ("cpu", "cuda", "auto"):
        raise ValueError(f"device={device!r} is not 'cpu', 'cuda' or 'auto'")
    if chosen(device, samples)[0] == "cuda":
        from .cuda.engine import CudaEngine

        return CudaEngine(n_jobs=n_jobs)
    from .cpu.engine import CpuEngine

    return CpuEngine(n_jobs)


def describe(device: str = "auto", samples: float = inf) -> str:
    """Which device that is, and why, in one line.

    >>> describe("cpu")
    'cpu: as asked'
    """
    return ": ".join(chosen(device, samples))


def chosen(device: str, samples: float = inf) -> tuple[str, str]:
    """ "cpu" or "cuda", and why."""
    if device == "cpu":
        return "cpu", "as asked"
    if device == "auto" and samples < _PAYS:
        return "cpu", f"{samples:.3g} samples run sooner than a GPU starts"
    from .cuda import engine as cuda
    from .cuda import kernels as cuda_kernels

    none = device == "auto" and cuda_kernels.unavailable()
    return "cpu" if none else "cuda", cuda.describe()
