"""What the estimators share: settings, training, and the file they are kept in."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from os import PathLike
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from . import store
from .checkpoints import Checkpoint, facts_of, take_up
from .checks import whole
from .engines import Engine, open_engine
from .factors import Factors
from .ids import Ids
from .kept import Kept
from .losses import Loss
from .observations import Observations
from .policy import Policy
from .progress import History
from .settings import Settings
from .train import Trainer


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
        store.write(path, arrays, facts)

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
