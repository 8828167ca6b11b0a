"""What the estimators share: settings, training, and the file they are kept in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..core.factors import Factors
from ..core.losses import Loss
from ..core.observations import Observations
from ..core.validation import whole
from ..engines.base import Engine, open_engine
from ..io import model_file
from ..io.ids import Ids
from ..training.auto_policy import AutoPolicy
from ..training.history import Callback, History
from ..training.policy import Policy
from ..training.state import Checkpoint, Kept, facts_of, take_up
from ..training.trainer import Trainer

# With rank="auto": fewer than four samples for each number to be learned rarely determine it, and
# more than 32 directions are asked for by name.
_SAMPLES_A_NUMBER, _WIDEST = 4, 32


class Settings(BaseEstimator):
    """The settings of an estimator, as scikit-learn knows them."""

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

    def _settings(self) -> dict:
        """As a file can hold them."""
        plain = {k: _plain(v) for k, v in self.get_params().items()}
        plain = {k: v for k, v in plain.items() if v is not NotImplemented}
        return plain | {"dtype": str(np.dtype(self.dtype))}


def _count(value) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _positive(value) -> bool:
    return isinstance(value, int | float | np.number) and bool(0 < value < np.inf)


def _plain(value):
    """The value as JSON can hold it, or NotImplemented: callbacks and generators are not kept."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if value is None or isinstance(value, bool | int | float | str) else NotImplemented


class Learner(Settings):
    """An estimator with factors, ids for its rows and columns, and a trainer behind it."""

    history_: History
    _streams: Mapping[str, dict] = MappingProxyType({})  # how far it has read, by source
    # The row of the table and the symmetry: settings of some estimators, facts about others.
    _loss: Loss
    _symmetric: bool
    _sides = ("row", "column")  # what one of each is called

    @property
    def factors(self) -> Factors:
        """The factors behind the estimator."""
        check_is_fitted(self, "history_")
        factors = self._trainer.factors
        factors.X = np.asarray(factors.X)  # brought here, if it lies elsewhere
        return factors

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

    def _in_files(self, files, columns: tuple, target: str | None) -> Any:
        """Observations that the machines of a cluster read by themselves. Where the columns, in the
        order of the loss's table, have no names, the files' own are taken and hold row numbers."""
        opened = getattr(self.engine, "open", None)
        if opened is None:
            raise ValueError(f"{files}: files are read on a cluster: give engine=RayEngine(...)")
        seen = opened(files, columns, target, self._loss, self._symmetric)
        for ids, known in zip(self._ids or (), seen.ids, strict=False):
            ids.add(known)
        return seen

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
        largest = observations.largest
        if np.dtype(self.dtype) == np.float32 and largest > 1e15:  # whose square still fits
            raise ValueError(f"a target of {largest:g} is too large for dtype='float32'")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        folder = getattr(self.engine, "checkpoint", None)
        checkpoint = Checkpoint(folder, self._settings()) if folder else None
        seed = checkpoint.seed(seed) if checkpoint else seed
        policy = self._policy()
        shape = observations.shape
        scale = policy.starting_scale(observations.size, shape, rank, observations.kind)
        # "auto" takes the GPU for many samples; those that are drawn anew are drawn on the CPU.
        samples = self.epochs * len(observations) if observations.negatives is None else 0
        engine = self.engine or open_engine(self.device, self.n_jobs, samples)
        factors = engine.start(
            shape,
            rank,
            self._loss,
            seed=seed,
            scale=scale,
            offset=policy.starting_column,
            dtype=self.dtype,
            symmetric=self._symmetric,
        )
        trainer = self._trained(factors, policy, engine)
        trainer.checkpoint = checkpoint
        return trainer

    def _trained(self, factors: Factors, policy: Policy, engine: Engine) -> Trainer:
        rng = np.random.default_rng([factors.seed, 2])  # 0 and 1 drew the two sides of X
        per_sample = self.scaled and self.refresh == "sample"
        return Trainer(factors, self._loss, policy, engine, rng, per_sample)

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
        model_file.write(path, arrays, facts)

    def _restore(self, arrays: dict[str, np.ndarray], facts: dict):
        factors = Factors(arrays["X"], **facts["factors"], spectrum=arrays["spectrum"])
        names = [Ids(arrays[f"ids{side}"]) for side in range(facts["ids"])]
        # Symmetric matrices have one set of names for both sides.
        self._ids = (names * 2)[:2] if names else None
        engine = self.engine or open_engine(self.device, self.n_jobs, 0)
        self._trainer = self._trained(factors, self._policy(), engine)
        take_up(self._trainer, facts, arrays.get("P"))
        self._trainer.kept, self.history_ = Kept.unpacked(arrays), self._trainer.history
        self._streams = facts.get("streams", {})
        self.n_features_in_ = factors.shape[1]
        return self
