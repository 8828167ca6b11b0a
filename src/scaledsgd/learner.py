"""What the estimators share: settings, training, and the file they are kept in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike
from types import MappingProxyType

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from . import store
from .engines import open_engine
from .factors import Factors
from .ids import Ids
from .kept import Kept
from .losses import Loss
from .observations import Observations, whole
from .policy import Policy
from .progress import Callback, History
from .train import Trainer
from .tuning import AutoPolicy

# With rank="auto": fewer than four samples for each number to be learned rarely determine it, and
# more than 32 directions are asked for by name.
_SAMPLES_A_NUMBER, _WIDEST = 4, 32

_COUNTERS = ("samples", "seconds", "left", "began")  # of a trainer, which a file remembers


class Learner(BaseEstimator):
    """An estimator with factors, ids for its rows and columns, and a trainer behind it."""

    history_: History
    _streams: Mapping[str, dict] = MappingProxyType({})  # how far it has read, by source
    # The row of the table and the symmetry: settings of some estimators, facts about others.
    _loss: Loss
    _symmetric: bool
    _sides = ("row", "column")  # what one of each is called

    def __init__(
        self,
        rank: int | str = 2,
        *,
        scaled: bool = True,
        learning_rate: float | str = "auto",
        damping: float | str = "auto",
        refresh: str = "round",
        epochs: int = 200,
        tol: float = 1e-16,
        evaluations: int = 1,
        n_jobs: int = 1,
        device: str = "cpu",
        dtype: str = "float64",
        random_state: int | np.random.RandomState | None = None,
        callbacks: Iterable[Callback] = (),
        verbose: bool = False,
    ):
        self.rank = rank
        self.scaled = scaled
        self.learning_rate = learning_rate
        self.damping = damping
        self.refresh = refresh
        self.epochs = epochs
        self.tol = tol
        self.evaluations = evaluations
        self.n_jobs = n_jobs
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.callbacks = callbacks
        self.verbose = verbose

    @property
    def factors(self) -> Factors:
        """The factors behind the estimator."""
        check_is_fitted(self, "history_")
        return self._trainer.factors

    @property
    def singular_values_(self) -> np.ndarray:
        """Singular values of the learned matrix, largest first."""
        if not hasattr(self, "history_"):  # as any fitted attribute, absent before fit
            raise AttributeError("singular_values_")
        return self.factors.singular_values()

    @property
    def effective_rank_(self) -> int:
        """How many directions were found to help on entries that were held out; the whole rank
        where none were."""
        if not hasattr(self, "history_"):
            raise AttributeError("effective_rank_")
        return self._trainer.policy.useful or self.factors.rank

    def _new_ids(self) -> list[Ids]:
        raise NotImplementedError

    def _observe(self, data, names, *, reset: bool) -> Observations | None:
        raise NotImplementedError

    def _memory(self) -> dict[str, np.ndarray]:
        """What an estimator knows besides its factors, for the file."""
        return {}

    def _learn(self, data, names: tuple, epochs: int, *, fresh: bool):
        """Train on data whose columns have these names, or on data without names."""
        named = names[0] is not None
        if not fresh and named != (self._ids is not None) and not isinstance(data, Observations):
            raise ValueError(
                "this model knows its rows by "
                + ("number, not by id" if named else "id: name the columns of the table")
            )
        with self._unless_refused():
            if fresh:
                self._ids = self._new_ids() if named else None
            observations = self._observe(data, names, reset=fresh)
            if observations is None:  # names that are new, and nothing to learn about them
                self._trainer.grow([len(ids) for ids in self._ids or ()])
                return self
            if observations.loss is not self._loss or observations.symmetric != self._symmetric:
                raise ValueError("these observations are of another loss or symmetry")
            given = data[0] if isinstance(data, tuple) else data
            observations.disposable = observations is not given
            if fresh:
                self._trainer, self._streams = self._start(observations), {}
        self._trainer.grow(observations.shape)
        # Set before training, so that a run that diverges leaves its last finite state behind.
        self.history_ = self._trainer.history
        self._trainer.run(
            observations,
            epochs=epochs,
            tol=self.tol,
            evaluations=self.evaluations,
            callbacks=self.callbacks,
            verbose=self.verbose,
        )
        return self

    @contextmanager
    def _unless_refused(self):
        """Data that is refused leaves no names behind."""
        ids = getattr(self, "_ids", None)
        known = [len(side) for side in ids or ()]
        try:
            yield
        except BaseException:
            self._ids = ids
            for side, count in zip(ids or (), known, strict=True):
                side.keep(count)
            raise

    def _start(self, observations: Observations) -> Trainer:
        self._check_settings(observations.shape)
        rank = self._search_rank(observations)
        largest = max(float(observations.targets.max()), -float(observations.targets.min()))
        if np.dtype(self.dtype) == np.float32 and largest > 1e15:  # whose square still fits
            raise ValueError(f"a target of {largest:g} is too large for dtype='float32'")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        policy = self._policy()
        shape = observations.shape
        scale = policy.starting_scale(observations.targets, shape, rank, observations.kind)
        factors = Factors.start(
            shape,
            rank,
            seed=seed,
            scale=scale,
            offset=policy.starting_column,
            dtype=self.dtype,
            symmetric=self._symmetric,
        )
        # "auto" takes the GPU for many samples; those that are drawn anew are drawn on the CPU.
        samples = self.epochs * len(observations) if observations.negatives is None else 0
        return self._trained(factors, policy, samples)

    def _search_rank(self, observations: Observations) -> int:
        """The rank asked for, or as many directions as the samples could bear out."""
        if self.rank != "auto":
            return int(self.rank)
        bearable = len(observations) // (_SAMPLES_A_NUMBER * sum(observations.shape))
        return int(np.clip(bearable, 1, min(_WIDEST, *observations.shape)))

    def _policy(self) -> Policy:
        if self.learning_rate == "auto":
            damping = 1.0 if self.damping == "auto" else float(self.damping)
            return AutoPolicy(damping=damping, scaled=self.scaled)
        # Beside a learning rate of the paper stands the paper's P, which is not damped.
        damping = 0.0 if self.damping == "auto" else float(self.damping)
        return Policy(float(self.learning_rate), damping, self.scaled)

    def _trained(self, factors: Factors, policy: Policy, samples: int = 0) -> Trainer:
        engine = open_engine(self.device, self.n_jobs, samples)
        rng = np.random.default_rng([factors.seed, 2])  # 0 and 1 drew the two sides of X
        per_sample = self.scaled and self.refresh == "sample"
        return Trainer(factors, self._loss, policy, engine, rng, per_sample)

    def _check_settings(self, shape: tuple[int, int]) -> None:
        rank = self.rank
        if rank == "auto" and self.learning_rate != "auto":
            raise ValueError("rank='auto' needs learning_rate='auto', which prunes directions")
        if rank != "auto" and not (_count(rank) and int(rank) >= 1):
            raise ValueError(f"rank={rank!r} is not 'auto' or a positive whole number")
        if rank != "auto" and int(rank) > min(shape):
            raise ValueError(
                f"rank={self.rank} is more than a matrix with n_samples={shape[0]} rows and "
                f"n_features={shape[1]} columns can have"
            )
        if self.learning_rate != "auto" and not _positive(self.learning_rate):
            raise ValueError(f"learning_rate={self.learning_rate!r} is not 'auto' or above 0")
        if not (self.damping in ("auto", 0) or _positive(self.damping)):
            raise ValueError(f"damping={self.damping!r} is not 'auto' or a number from 0 up")
        if self.refresh not in ("round", "sample"):
            raise ValueError(f"refresh={self.refresh!r} is not 'round' or 'sample'")
        if str(np.dtype(self.dtype)) not in ("float32", "float64"):
            raise ValueError(f"dtype={self.dtype!r} is not float32 or float64")
        for name, least in (("epochs", 1), ("n_jobs", 1), ("evaluations", 0)):
            value = getattr(self, name)
            if not _count(value) or value < least:
                raise ValueError(f"{name}={value!r} is not a whole number from {least} up")

    def _rows(self, names, side: int) -> np.ndarray:
        """Row numbers of names; numbers are checked against the matrix."""
        what = self._sides[side]
        if self._ids is not None:
            return self._ids[side].rows(names, what)
        rows = whole(names, what)
        limit = self.factors.shape[side]
        if len(rows) and not (rows.min() >= 0 and rows.max() < limit):
            wrong = rows[(rows < 0) | (rows >= limit)][0]
            raise ValueError(f"{what} {wrong} is not one of the {limit} {what}s of the matrix")
        return rows

    def _scores(self, sides: list[np.ndarray]) -> np.ndarray:
        """z for row numbers given in the order of the loss's table."""
        offsets = [side * self.factors.begin for side in self._loss.sides]
        index = np.stack([rows + by for rows, by in zip(sides, offsets, strict=True)], axis=1)
        return self._trainer.engine.scores(self.factors, index, self._loss)

    def save(self, path: str | PathLike) -> None:
        """Write the model to one file, atomically; `scaledsgd.load` reads it back."""
        check_is_fitted(self, "history_")
        trainer, factors = self._trainer, self.factors
        settings = {k: _plain(v) for k, v in self.get_params().items()}
        settings = {k: v for k, v in settings.items() if v is not NotImplemented}
        facts = {
            "estimator": type(self).__name__,
            "settings": settings | {"dtype": str(np.dtype(self.dtype))},
            "factors": {
                "rows": factors.rows,
                "seed": factors.seed,
                "scale": factors.scale,
                "offset": factors.offset,
            },
            "policy": asdict(trainer.policy),
            "history": asdict(trainer.history),
            **{name: getattr(trainer, name) for name in _COUNTERS},
            "random": trainer.rng.bit_generator.state,
            "ids": 0 if self._ids is None else 1 if self._symmetric else 2,
            "streams": dict(self._streams),
        }
        arrays = {"X": factors.compact(), "spectrum": factors.spectrum, **self._memory()}
        if trainer.P is not None:
            arrays["P"] = trainer.P
        if trainer.kept is not None:
            arrays |= trainer.kept.packed(trainer.engine)
        for side, ids in enumerate((self._ids or ())[: facts["ids"]]):
            arrays[f"ids{side}"] = ids.names()
        store.write(path, arrays, facts)

    def _restore(self, arrays: dict[str, np.ndarray], facts: dict):
        factors = Factors(arrays["X"], **facts["factors"], spectrum=arrays["spectrum"])
        names = [Ids(arrays[f"ids{side}"]) for side in range(facts["ids"])]
        # Symmetric matrices have one set of names for both sides.
        self._ids = (names * 2)[:2] if names else None
        self._trainer = self._trained(factors, type(self._policy())(**facts["policy"]))
        self._trainer.history = self.history_ = History(**facts["history"])
        for name in _COUNTERS:
            setattr(self._trainer, name, facts.get(name, 0))
        self._trainer.P, self._trainer.kept = arrays.get("P"), Kept.unpacked(arrays)
        self._streams = facts.get("streams", {})
        self._trainer.rng.bit_generator.state = facts["random"]
        self.n_features_in_ = factors.shape[1]
        return self


def _count(value) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _positive(value) -> bool:
    return isinstance(value, int | float | np.number) and bool(0 < value < np.inf)


def _plain(value):
    """The value as JSON can hold it, or NotImplemented: callbacks and generators are not kept."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, bool | int | float | str) else NotImplemented
