"""Low-rank matrices from a stream of single entries, distances or comparisons.

>>> from scaledsgd import MatrixCompleter, DistanceCompleter, ItemRanker
"""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core.observations import Observations
    from .engines.cluster.engine import RayEngine
    from .estimators.base import Learner
    from .estimators.completers import DistanceCompleter, MatrixCompleter
    from .estimators.ranker import ItemRanker
    from .estimators.recommender import Recommender
    from .io.model_file import ModelFileError
    from .serving.client import Client
    from .streaming.stream import learn_many
    from .training.history import DivergenceError, UndeterminedWarning

__version__ = "0.1.0"

# Loaded when first asked for: scikit-learn and the compilers are not needed to import the name.
_HOMES = {
    "MatrixCompleter": "estimators.completers",
    "DistanceCompleter": "estimators.completers",
    "ItemRanker": "estimators.ranker",
    "Recommender": "estimators.recommender",
    "Observations": "core.observations",
    "RayEngine": "engines.cluster.engine",
    "DivergenceError": "training.history",
    "UndeterminedWarning": "training.history",
    "ModelFileError": "io.model_file",
    "learn_many": "streaming.stream",
    "Client": "serving.client",
}

__all__ = [
    "Client",
    "DistanceCompleter",
    "DivergenceError",
    "ItemRanker",
    "MatrixCompleter",
    "ModelFileError",
    "Observations",
    "RayEngine",
    "Recommender",
    "UndeterminedWarning",
    "learn_many",
    "load",
]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def load(path: str | PathLike) -> Learner:
    """The model that `save` wrote to this file.

    >>> import numpy as np, tempfile
    >>> from scaledsgd import MatrixCompleter, load
    >>> model = MatrixCompleter(rank=1, epochs=1, random_state=0).fit(np.ones((3, 3)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/ones.safetensors")
    ...     again = load(f"{folder}/ones.safetensors")
    >>> np.array_equal(again.row_factors_, model.row_factors_)
    True
    """
    from .io import model_file

    arrays, facts = model_file.read(path)
    kind = facts.get("estimator")
    if kind not in ("MatrixCompleter", "DistanceCompleter", "ItemRanker", "Recommender"):
        raise model_file.ModelFileError(f"{path}: unknown kind of model {kind!r:.60}")
    from .estimators.contents import validate

    try:
        model = __getattr__(kind)(**facts["settings"])
        model._check()
        validate(model, arrays, facts)
        return model._restore(arrays, facts)
    except (KeyError, TypeError, ValueError, OverflowError) as why:
        raise model_file.ModelFileError(f"{path}: not a sound model ({why})") from None
