"""What the estimators share: settings, training, and the file they are kept in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import wraps
from inspect import getattr_static
from os import PathLike
from threading import RLock
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..core.factors import Factors
from ..core.losses import Loss
from ..core.observations import Observations
from ..core.validation import LARGEST, target_bounds, whole
from ..engines.base import Engine, open_engine
from ..io import model_file
from ..io.ids import Ids
from ..io.schema import Either, Number, misfit, told
from ..training.auto_policy import AutoPolicy
from ..training.history import Callback, History
from ..training.policy import Policy
from ..training.state import Checkpoint, Snapshot, facts_of, take_up
from ..training.trainer import Trainer
from .contents import validate

# With rank="auto": fewer than 1.2 samples for each number to be learned rarely determine it, and
# more than 32 directions are asked for by name.
_SAMPLES_A_NUMBER, _WIDEST = 1.2, 32


class NothingToLearn(ValueError):
    """Events that are sound, and tell nothing without more of them."""


class Role(NamedTuple):
    """What a column of events means to a model."""

    key: str  # what partial_fit calls it
    ids: int | None = None  # whose names: columns with the same number share them; None: a number
    low: float = -np.inf
    high: float = np.inf


_MOST = 2**31 - 1
FLAG = Either(bool, np.bool_)

# What a setting may be, where that does not depend on the data.
SETTINGS: dict[str, Any] = {
    "rank": Either("auto", Number(1, _MOST, whole=True)),
    "scaled": FLAG,
    "learning_rate": Either("auto", Number(0, above=True)),
    "damping": Either("auto", Number(0)),
    "refresh": Either("round", "sample"),
    "epochs": Number(1, _MOST, whole=True),
    "tol": Number(endless=True),
    "evaluations": Number(0, 10_000, whole=True),  # an epoch: each looks at 100,000 samples
    # Threads, more than the cores of any machine; -1: all cores.
    "n_jobs": Either(-1, Number(1, 1024, whole=True)),
    "device": Either("cpu", "cuda", "auto"),
    "dtype": Either("float32", "float64"),
    "verbose": Either(FLAG, Number(0, whole=True)),
}


class Settings(BaseEstimator):
    """The settings of an estimator, as scikit-learn knows them."""

    _legal = SETTINGS

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
        engine: Engine | None = None,
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
        self.engine = engine
        self.dtype = dtype
        self.random_state = random_state
        self.callbacks = callbacks
        self.verbose = verbose

    def _check(self) -> None:
        """Each setting by itself, or one line that says which is no good."""
        for name, value in self.get_params(deep=False).items():
            spec = self._legal.get(name)
            if spec is not None and misfit(_dtype(value) if name == "dtype" else value, spec):
                raise ValueError(f"{name}={value!r} is not {told(spec)}")

    def _check_settings(self, shape: tuple[int, int]) -> None:
        self._check()
        if self.rank == "auto" and self.learning_rate != "auto":
            raise ValueError("rank='auto' needs learning_rate='auto', which prunes directions")
        if self.rank != "auto" and int(self.rank) > min(shape):
            raise ValueError(
                f"rank={self.rank} is more than a matrix with n_samples={shape[0]} rows and "
                f"n_features={shape[1]} columns can have"
            )

    def _search_rank(self, observations: Observations) -> int:
        """The rank asked for, or as many directions as the samples could bear out."""
        if self.rank != "auto":
            return int(self.rank)
        numbers = sum(observations.shape) / (2 if observations.symmetric else 1)  # a direction
        bearable = len(observations) // (_SAMPLES_A_NUMBER * numbers)
        return int(np.clip(bearable, 1, min(_WIDEST, *observations.shape)))

    def _policy(self) -> Any:
        if self.learning_rate == "auto":
            damping = 1.0 if self.damping == "auto" else float(self.damping)
            return AutoPolicy(damping=damping, scaled=self.scaled)
        # Beside a learning rate of the paper stands the paper's P, which is not damped.
        damping = 0.0 if self.damping == "auto" else float(self.damping)
        return Policy(float(self.learning_rate), damping, self.scaled)

    def _settings(self) -> dict:
        """As a file can hold them."""
        given = self.get_params()
        plain = {k: _plain(v) for k, v in given.items()}
        plain = {k: v for k, v in plain.items() if v is not NotImplemented}
        return plain | ({"dtype": str(np.dtype(self.dtype))} if "dtype" in given else {})


def _dtype(value) -> str:
    try:
        return str(np.dtype(value))
    except TypeError:
        return ""


def _plain(value):
    """The value as JSON can hold it, or NotImplemented: callbacks and generators are not kept."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, bool | int | float | str) else NotImplemented


# A lock for each model, and not in it: what is in it is copied, pickled and compared.
_LOCKS: WeakKeyDictionary[Learner, Any] = WeakKeyDictionary()


def _guarded(method: FunctionType):
    @wraps(method)
    def call(self, *given, **named):
        with self.locked():
            return method(self, *given, **named)

    return call


class Learner(Settings):
    """An estimator with factors, ids for its rows and columns, and a trainer behind it.

    Threads may ask it, save it and teach it at once: every public method and property waits until
    no other one is at work. Arrays that it hands out are its own, and change when it learns on:
    whoever looks at them for longer does so within `locked`.
    """

    history_: History
    _streams: Mapping[str, dict] = MappingProxyType({})  # how far it has read, by source
    _sides = ("row", "column")  # what one of each is called

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        for name in dir(cls):
            found = getattr_static(cls, name)
            body: Any = found.fget if isinstance(found, property) else found
            public = (
                not name.startswith("_") and name != "locked" and isinstance(body, FunctionType)
            )
            ours = public and body.__module__.startswith("scaledsgd.")
            if ours and not hasattr(body, "__wrapped__"):
                whole = _guarded(body)
                setattr(cls, name, property(whole) if isinstance(found, property) else whole)

    def locked(self) -> Any:
        """A context in which no other thread teaches or asks this model."""
        return _LOCKS.setdefault(self, RLock())

    @property
    def objective(self) -> Loss:
        """The row of the table of losses: a setting of some estimators, a fact about others."""
        raise NotImplementedError

    @property
    def is_symmetric(self) -> bool:
        """Whether rows and columns are the same: M ~ X X^T."""
        raise NotImplementedError

    @property
    def factors(self) -> Factors:
        """The factors behind the estimator, brought here if they lie elsewhere."""
        check_is_fitted(self, "history_")
        factors = self._trainer.factors
        factors.X = self._trainer.engine.local(factors.X)
        return factors

    @property
    def trainer(self) -> Trainer:
        """Who trained it."""
        check_is_fitted(self, "history_")
        return self._trainer

    @property
    def ids(self) -> list[Ids] | None:
        """Names of the rows and of the columns; None where they are known by number."""
        return self._ids

    @property
    def residual(self) -> float:
        """Root mean square of what predictions were off by lately, before they were corrected."""
        return self._trainer.policy.rms if hasattr(self, "history_") else float("nan")

    def name_rows(self) -> None:
        """Rows that are known by number: those are their ids from now on."""
        if hasattr(self, "history_") and self._ids is None:
            self._ids = self._new_ids()
            for ids, rows in zip(self._ids, self.factors.shape, strict=True):
                ids.add(np.arange(rows))

    def set_threads(self, n_jobs: int) -> None:
        """Go on with so many threads."""
        self.n_jobs = n_jobs
        if hasattr(self, "history_"):
            self._trainer.engine = open_engine(self.device, n_jobs)

    def position_in(self, source: str) -> dict | None:
        """How far a stream of that name has been learned."""
        return self._streams.get(source)

    def remember_position(self, source: str, position: dict) -> None:
        self._streams = {**self._streams, source: position}

    def roles(self, columns: Mapping[str, str | None]) -> tuple[list[Role], int]:
        """What the columns of an event mean, and how many of them there must be. Args: columns,
        the names of those that were named, by what `partial_fit` calls them."""
        low, high = target_bounds(self.objective, self.dtype)
        second = 0 if self.is_symmetric else 1
        return [Role("row", 0), Role("column", second), Role("value", None, low, high)], 3

    def id_kinds(self) -> dict[int, type]:
        """Whether ids are numbers or words, by the number of a `Role`, where that is known."""
        return {side: ids.kind for side, ids in enumerate(self._ids or ()) if ids.kind}

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
        useful = self._trainer.policy.useful
        return useful if useful >= 0 else self.factors.rank

    def _in_files(self, files, columns: tuple, target: str | None) -> Any:
        """Observations that the machines of a cluster read by themselves. Where the columns, in the
        order of the loss's table, have no names, the files' own are taken and hold row numbers."""
        engine = self.engine or open_engine(self.device, self.n_jobs, 0)
        seen = engine.open_files(files, columns, target, self.objective, self.is_symmetric)
        for ids, known in zip(self._ids or (), seen.ids, strict=False):
            ids.add(known)
        return seen

    def _new_ids(self) -> list[Ids]:
        raise NotImplementedError

    def _observe(self, data, names, *, reset: bool) -> Observations | None:
        raise NotImplementedError

    def _facts(self) -> dict:
        """What else an estimator knows that is no array, as JSON can hold it."""
        return {}

    def _memory(self) -> dict[str, np.ndarray]:
        """What an estimator knows besides its factors, for the file."""
        return {}

    def _learn(self, data, names: tuple, epochs: int, *, fresh: bool, streaming: bool = False):
        """Train on data whose columns have these names, or on data without names."""
        observations = self._observed(data, names, fresh=fresh)
        if observations is not None:
            self._trainer.run(observations, epochs=epochs, streaming=streaming, **self._how())
        return self

    def _how(self) -> dict:
        """What a run is told."""
        return {
            "tol": self.tol,
            "evaluations": self.evaluations,
            "callbacks": self.callbacks,
            "verbose": self.verbose,
        }

    def _observed(
        self, data, names: tuple, *, fresh: bool, weights=None, relative: bool = True
    ) -> Any:
        """What the data says, with a trainer that has room for it; None if it only names rows.
        Args: weights, of the samples; relative, whether only to each other."""
        self._check()
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
                return None
            of = observations.loss, observations.symmetric
            if of != (self.objective, self.is_symmetric):
                raise ValueError("these observations are of another loss or symmetry")
            given = data[0] if isinstance(data, tuple) else data
            observations.disposable = observations is not given
            if weights is not None:
                rows = not named and not isinstance(data, Observations)
                observations = observations.weighed(weights, normalised=relative, rows=rows)
            if fresh:
                self._trainer, self._streams = self._start(observations), {}
        self._trainer.grow(observations.shape)
        # Set before training, so that a run that diverges leaves its last finite state behind.
        self.history_ = self._trainer.history
        return observations

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

    @property
    def _smallest(self) -> float:
        """The smallest targets that can be learned."""
        return 1 / LARGEST[str(np.dtype(self.dtype))]

    def _start(self, observations: Observations) -> Trainer:
        self._check_settings(observations.shape)
        rank = self._search_rank(observations)
        largest = observations.largest
        if largest > LARGEST[str(np.dtype(self.dtype))]:
            raise ValueError(f"a target of {largest:g} is too large for dtype={self.dtype!r}")
        if 0 < largest < self._smallest:  # squares that vanish look solved
            raise ValueError(
                f"targets of at most {largest:g} are too small for dtype={self.dtype!r}: scale them"
            )
        seed, checkpoint = self._seeded()
        policy = self._policy()
        shape = observations.shape
        scale = policy.starting_scale(observations.size, shape, rank, self.objective.name)
        samples = self.epochs * len(observations)
        engine = self.engine or open_engine(self.device, self.n_jobs, samples)
        factors = engine.start(
            shape,
            rank,
            self.objective,
            seed=seed,
            scale=scale,
            offset=policy.starting_column,
            dtype=self.dtype,
            symmetric=self.is_symmetric,
        )
        trainer = self._trained(factors, policy, engine)
        trainer.checkpoint = checkpoint
        return trainer

    def _drawn(self) -> int:
        """A seed by the setting."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _seeded(self) -> tuple[int, Checkpoint | None]:
        """The seed of a run, and the checkpoint that it goes on from, if it has one."""
        folder = self.engine.checkpoint if self.engine else None
        checkpoint = Checkpoint(folder, self._settings()) if folder else None
        return checkpoint.seed(self._drawn()) if checkpoint else self._drawn(), checkpoint

    def _trained(self, factors: Factors, policy: Any, engine: Engine) -> Any:
        rng = np.random.default_rng([factors.seed, 2])  # 0 and 1 drew the two sides of X
        per_sample = self.scaled and self.refresh == "sample"
        return self._trainer_of(factors, self.objective, policy, engine, rng, per_sample)

    def _trainer_of(self, *given) -> Trainer:
        return Trainer(*given)

    def _named(self, rows: np.ndarray, scores: np.ndarray, single: bool):
        """Names of items by row number, -1 (or None) where there are none, and their scores: of a
        `single` question without those."""
        found = rows >= 0
        names = self._ids[1].names()[rows] if self._ids else rows
        if single:
            return names[0][found[0]], scores[0][found[0]]
        names[~found] = -1 if names.dtype.kind == "i" else None
        return names, scores

    def row_numbers(self, names, side: int) -> np.ndarray:
        """Row numbers of names; numbers are checked against the matrix."""
        check_is_fitted(self, "history_")
        what = self._sides[side]
        if self._ids is not None:
            return self._ids[side].rows(names, what)
        rows = whole(names, what)
        limit = self.factors.shape[side]
        if len(rows) and not (rows.min() >= 0 and rows.max() < limit):
            wrong = rows[(rows < 0) | (rows >= limit)][0]
            raise ValueError(f"{what} {wrong} is not one of the {limit} {what}s of the matrix")
        return rows

    def scores(self, sides: list[np.ndarray]) -> np.ndarray:
        """z for row numbers given in the order of the loss's table."""
        offsets = [side * self.factors.begin for side in self.objective.sides]
        index = np.stack([rows + by for rows, by in zip(sides, offsets, strict=True)], axis=1)
        return self._trainer.engine.scores(self.factors, index, self.objective)

    def frozen(self) -> Learner:
        """A copy that answers as the model does now, whatever it learns later: for readers in other
        threads. It shares what training does not change in place, and costs a copy of X."""
        check_is_fitted(self, "history_")
        still, trainer, factors = copy(self), copy(self._trainer), self.factors
        X = np.concatenate(factors.sides)
        trainer.factors = replace(factors, X=X, spectrum=factors.spectrum.copy(), gap=0, room=None)
        trainer.policy, trainer.snapshot = replace(trainer.policy), None
        still._trainer = trainer
        still._ids = None if self._ids is None else [ids.frozen() for ids in self._ids]
        still.history_ = trainer.history = replace(
            self.history_, records=list(self.history_.records)
        )
        return still

    def settle(self) -> None:
        """After the model was saved: remove the checkpoint it could have gone on from, and let the
        workers of a cluster go."""
        if self._trainer.checkpoint is not None:
            self._trainer.checkpoint.clear()
        if self.engine is not None:
            self.factors  # noqa: B018  (comes here from the workers)
            self.engine.close()

    def save(self, path: str | PathLike) -> None:
        """Write the model to one file, atomically; `scaledsgd.load` reads it back."""
        check_is_fitted(self, "history_")
        trainer, factors = self._trainer, self.factors
        facts = {
            "estimator": type(self).__name__,
            "settings": self._settings(),
            "factors": {
                "rows": factors.rows,
                "seed": factors.seed,
                "scale": factors.scale,
                "offset": factors.offset,
            },
            **facts_of(trainer),
            "ids": 0 if self._ids is None else 1 if self.is_symmetric else 2,
            "streams": dict(self._streams),
            "own": self._facts(),
        }
        arrays = {"X": factors.compact(), "spectrum": factors.spectrum, **self._memory()}
        if trainer.P is not None:
            arrays["P"] = trainer.P
        if trainer.snapshot is not None:
            arrays |= trainer.snapshot.packed(trainer.engine)
        for side, ids in enumerate((self._ids or ())[: facts["ids"]]):
            arrays[f"ids{side}"] = ids.names()
        validate(self, arrays, facts)  # what could not be read again is not written
        model_file.write(path, arrays, facts)

    def _restore(self, arrays: dict[str, np.ndarray], facts: dict):
        """Take up what `save` wrote, and what `validate` has passed."""
        factors = Factors(arrays["X"], **facts["factors"], spectrum=arrays["spectrum"])
        names = [Ids(arrays[f"ids{side}"]) for side in range(facts["ids"])]
        # Symmetric matrices have one set of names for both sides.
        self._ids = (names * 2)[:2] if names else None
        engine = self.engine or open_engine(self.device, self.n_jobs, 0)
        self._trainer = self._trained(factors, self._policy(), engine)
        take_up(self._trainer, facts, arrays.get("P"))
        self._trainer.snapshot, self.history_ = Snapshot.unpacked(arrays), self._trainer.history
        self._streams = facts.get("streams", {})
        self.n_features_in_ = factors.shape[1]
        return self
