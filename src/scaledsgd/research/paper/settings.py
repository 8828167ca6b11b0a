"""The paper's experiments as a table: what each figure learns from, and with which steps.

>>> FIGURES["fig7"].train, FIGURES["fig1"].cases[1].spectrum
(1000000, (10.0, 0.1, 0.001))
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

METHODS = {"ScaledSGD": True, "SGD": False}
AUTO = "automatic"  # the name of the runs that set themselves


@dataclass(frozen=True)
class Options:
    """What the user may choose. `rank` None is the paper's."""

    scale: float = 1.0
    seed: int = 0
    seeds: int = 1
    rank: int | None = None
    authors: Path | None = None
    data: Path | None = None
    cache: Path | None = None
    tuned: bool = False
    auto: bool = False
    refresh: str = "round"
    device: str = "cpu"
    jobs: int = 1
    verbose: bool = False

    def per_sample(self, scaled: bool) -> bool:
        """Whether there is a P that follows every sample."""
        return scaled and self.refresh == "sample"

    def __post_init__(self):
        if not 0 < self.scale <= 1:
            raise ValueError(f"scale={self.scale} is not above 0 and at most 1")
        for name in ("seeds", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is not a positive whole number")
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank={self.rank} is not a positive whole number")


@dataclass(frozen=True)
class Case:
    """One panel: a ground truth, and alpha for ScaledSGD and SGD."""

    name: str
    alphas: tuple[float, float]
    spectrum: tuple[float, ...] = ()
    outliers: int = 0
    authors: str = ""  # the end of the names of the authors' curves
    matrix: str = ""  # the name of the authors' matrix, or of their points


@dataclass(frozen=True)
class MatrixFigure:
    """A small ground truth of which everything is observed: Fig. 1, 2, 4, 5 and 6."""

    title: str
    loss: str
    rank: int
    epochs: int
    cases: tuple[Case, ...]
    noise: float | None = None  # signal to noise ratio in dB
    authors: str = ""  # the beginning of the names of the authors' curves


@dataclass(frozen=True)
class RankingFigure:
    """Comparisons of movies, at the paper's four sizes: Fig. 3, 7, 8 and 9."""

    title: str
    data: str  # which MovieLens
    train: int
    test: int
    epochs: int
    alphas: tuple[float, float]
    authors: str = ""
    # What the paper says: NP-Maximum, the final AUC of ScaledSGD, and the percent of an epoch after
    # which ScaledSGD and SGD pass NP-Maximum (None: not printed).
    np_maximum: float | None = None
    final: float | None = None
    passes: tuple[float | None, float | None] = (None, None)
    sgd_needs_more_than_an_epoch: bool = False


_WELL, _ILL = "well-conditioned", "ill-conditioned"
_EQUAL, _SPREAD = (2.0, 2.0, 2.0), (10.0, 0.1, 0.001)


def _pair(alphas, first, prefix="MAT_30", second=_SPREAD) -> tuple[Case, Case]:
    return (
        Case(_WELL, alphas, first, authors="_well", matrix=f"{prefix}/MW"),
        Case(_ILL, alphas, second, authors="_ill", matrix=f"{prefix}/MI"),
    )


FIGURES: dict[str, MatrixFigure | RankingFigure] = {
    "fig1": MatrixFigure(
        "Matrix completion with the squared loss", "squared", 3, 200, _pair((0.3, 0.3), _EQUAL),
        authors="exp1",
    ),
    "fig2": MatrixFigure(
        "Points from their distances", "distance", 3, 500,
        (
            Case("uniform in a cube", (0.2, 0.02), authors="_well", matrix="EDM_30/XW"),
            Case("with five outliers", (0.2, 0.002), outliers=5, authors="_ill",
                 matrix="EDM_30/XI"),
        ),
        authors="exp2",
    ),
    "fig3": RankingFigure(
        "Ranking movies", "25m", 100_000_000, 10_000_000, 2,
        (1000.0, 0.01), "exp3", 0.804, 0.903, (11.0, 46.0),
    ),
    "fig4": MatrixFigure(
        "One-bit matrix completion", "logistic", 3, 200, _pair((1.0, 1.0), _EQUAL),
    ),
    "fig5": MatrixFigure(
        "Noisy entries, squared loss", "squared", 5, 50,
        _pair((0.15, 0.01), (10.0, 10.0, 10.0), "EXP5"), noise=15.0, authors="exp5",
    ),
    "fig6": MatrixFigure(
        "Noisy entries, one-bit loss", "logistic", 5, 300,
        _pair((0.15, 0.01), (10.0, 10.0, 10.0), "EXP5"), noise=15.0,
    ),
    "fig7": RankingFigure(
        "Ranking movies", "small", 1_000_000, 100_000, 5,
        (1000.0, 0.05), "exp7", 0.790, 0.829, (63.0, 212.0), sgd_needs_more_than_an_epoch=True,
    ),
    "fig8": RankingFigure(
        "Ranking movies", "latest", 10_000_000, 1_000_000, 3,
        (5000.0, 0.05), sgd_needs_more_than_an_epoch=True,
    ),
    "fig9": RankingFigure(
        "Ranking movies", "latest", 30_000_000, 3_000_000, 2,
        (5000.0, 0.05),
    ),
}  # fmt: skip
