"""What can be set on every estimator, and what of it makes sense."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from sklearn.base import BaseEstimator

from .engines import Engine
from .observations import Observations
from .policy import Policy
from .progress import Callback
from .tuning import AutoPolicy

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
