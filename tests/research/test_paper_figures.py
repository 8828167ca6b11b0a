"""The paper's claims, on small copies of its experiments, and the files that a run leaves."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from commands import runner
from shared_data import SHARED, SMALL

from scaledsgd.research.paper import beyond, rankings, reproduce
from scaledsgd.research.paper.runs import Step
from scaledsgd.research.paper.settings import FIGURES, Options
from scaledsgd.research.synthetic import TWINS

pytestmark = pytest.mark.slow

CURVES = SHARED / "authors" / "curves.npz"


def needs(path):
    return pytest.mark.skipif(not path.exists(), reason=f"{path.name} is not at hand")


def finite(values) -> np.ndarray:
    return np.array([np.inf if v is None else v for v in values])


def failing(outcome) -> list[dict]:
    return [row for row in outcome.claims if row["holds"] is False]


@pytest.fixture
def run(capsys):
    return runner(capsys)


# --- Small ground truths --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "refresh"),
    [*((f"fig{n}", "round") for n in (1, 2, 4, 5, 6)), ("fig1", "sample"), ("fig2", "sample")],
)
def test_what_the_paper_says_of_small_matrices(name, refresh):
    outcome = reproduce.run(name, Options(seeds=3, refresh=refresh, auto=refresh == "round"))
    assert not failing(outcome)
    assert len(outcome.claims) >= 4 or refresh == "sample"
    points = FIGURES[name].epochs + 1
    for curve, values in outcome.curves.items():
        assert len(values) == (1 if curve.startswith("noise floor") else points)


@pytest.mark.parametrize("name", ["fig5", "fig6"])
def test_nothing_is_below_the_noise_floor(name):
    curves = reproduce.run(name, Options(seed=1)).curves
    for case in ("well-conditioned", "ill-conditioned"):
        (floor,) = curves[f"noise floor, {case}"]
        scaled, plain = (finite(curves[f"{m}, {case}"]) for m in ("ScaledSGD", "SGD"))
        assert min(scaled.min(), plain.min()) >= 0.999 * floor
        assert scaled[-1] < plain[-1]


def test_the_median_and_the_range_of_seeds():
    curves = reproduce.run("fig5", Options(seeds=3)).curves
    name = "SGD, ill-conditioned"
    low, middle, high = (finite(curves[name + end]) for end in (", lowest", "", ", highest"))
    assert (low <= middle).all() and (middle <= high).all() and (low < high).any()


@needs(CURVES)
@pytest.mark.parametrize("name", ["fig1", "fig2", "fig5"])
def test_our_curves_are_the_authors(name):
    """On their matrices, from other starts and in another order: as many epochs within a third."""
    options = Options(authors=CURVES, seeds=5)
    outcome = reproduce.run(name, options)
    assert outcome.data == "the authors' matrices" and not failing(outcome)
    figure = FIGURES[name]
    with np.load(CURVES) as theirs:
        for case in figure.cases:
            for method, key in (("ScaledSGD", "fscsgd"), ("SGD", "fsgd")):
                ours = finite(outcome.curves[f"{method}, {case.name}"])
                other = theirs[f"{figure.authors}/{key}{case.authors}"]
                level = 2 * max(other[-1], ours[-1], 1e-14)
                needed = [int(np.argmax(curve <= level)) for curve in (ours, other)]
                assert needed[0] == pytest.approx(needed[1], rel=0.34, abs=2)


# --- Rankings -------------------------------------------------------------------------------------


@pytest.fixture
def smaller(monkeypatch):
    """Twins of the large tables with a tenth of the items, which take a second to make, and the
    figures that go with them."""
    for name in ("25m", "latest"):
        table = TWINS[name]._replace(users=16_000, items=6_000, ratings=1_000_000)
        monkeypatch.setitem(TWINS, name, table)
    for name, figure in FIGURES.items():
        if name in ("fig3", "fig8", "fig9"):
            scaled, plain = figure.alphas
            fewer = {"train": figure.train // 10, "test": figure.test // 10}
            tenth = replace(figure, **fewer, alphas=(scaled / 10, plain))
            monkeypatch.setitem(FIGURES, name, tenth)


@pytest.mark.parametrize(("name", "scale"), [("fig3", 0.03), ("fig7", 0.05), ("fig9", 0.05)])
def test_what_the_paper_says_of_rankings(name, scale, smaller):
    outcome = reproduce.run(name, Options(scale=scale, jobs=2, auto=True))
    assert "synthetic twin" in outcome.data
    assert "synthetic twin" in outcome.picture.get_suptitle()
    assert not failing(outcome)
    curves = outcome.curves
    (best,) = curves["NP-Maximum"]
    scaled, plain = (finite(curves[f"{m}, test AUC"]) for m in ("ScaledSGD", "SGD"))
    assert len(scaled) == 100 * FIGURES[name].epochs + 1
    assert scaled[0] == plain[0] == pytest.approx(0.5, abs=0.05)
    assert (scaled[50:] >= plain[50:] - 0.01).all()
    assert min(scaled[-1], plain[-1]) > best
    for method in ("ScaledSGD", "SGD"):
        losses = finite(curves[f"{method}, training loss"])
        assert losses[-1] < 0.5 < losses[0]


@needs(SMALL)
def test_a_part_of_movielens():
    outcome = reproduce.run("fig7", Options(scale=0.05, data=SMALL, jobs=2))
    assert outcome.data == "MovieLens, ml-latest-small, 0.05 of the items"
    assert outcome.settings["items"] == "486"
    # The numbers of the paper are not held against a part of the data.
    assert [row["holds"] for row in outcome.claims[-2:]] == [None, None]


def test_a_folder_is_not_taken_for_other_data(tmp_path):
    whole, other = tmp_path / "ml-25m", tmp_path / "ml-latest-small"
    whole.mkdir()
    other.mkdir()
    assert rankings.copy_of("25m", tmp_path) == rankings.copy_of("25m", whole) == whole
    assert rankings.copy_of("25m", other) is None
    assert rankings.copy_of("latest", tmp_path) == tmp_path  # a folder of any other name


# --- What is only proved --------------------------------------------------------------------------


def test_kappa_does_not_matter(monkeypatch):
    monkeypatch.setattr(beyond, "_KAPPAS", 10.0 ** np.array([0, 1, 2, 8]))
    assert not failing(beyond.kappa(Options()))


def test_coherence_comes_down():
    assert not failing(beyond.coherence(Options(seed=1)))


def test_a_moving_truth_is_followed(monkeypatch):
    monkeypatch.setattr(beyond, "_CHUNKS", 1500)
    assert not failing(beyond.drift(Options(seed=1)))


# --- Tuned ----------------------------------------------------------------------------------------


def test_tuned_is_not_worse_than_the_papers_step():
    paper, tuned = (reproduce.run("fig5", Options(tuned=tuned)) for tuned in (False, True))
    for method in ("ScaledSGD", "SGD"):
        name = f"{method}, ill-conditioned"
        ours, theirs = (np.log(finite(o.curves[name])).mean() for o in (tuned, paper))
        assert ours <= theirs + 0.05
    assert str(Step(0.3, 2.0)) == "step 0.3, halved every 2 epochs"


# --- Files and commands ---------------------------------------------------------------------------


def test_files_of_a_run(run, tmp_path):
    code, out, _ = run("reproduce", "fig1", "--out", str(tmp_path), "--seeds", "2")
    assert code == 0
    assert out.splitlines()[-1] == str(tmp_path / "index.html")
    assert max(map(len, out.splitlines()[:-1])) <= 80
    code, out, _ = run("reproduce", "fig5", "--out", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out)["figures"]["fig5"]["figure"] == "fig5"
    names = {f"{figure}.{end}" for figure in ("fig1", "fig5") for end in ("png", "svg", "json")}
    assert {path.name for path in tmp_path.iterdir()} == names | {"index.html"}
    facts = json.loads((tmp_path / "fig1.json").read_text())
    assert {"figure", "settings", "curves", "claims"} <= set(facts)
    assert all(set(row) == {"paper", "measured", "holds"} for row in facts["claims"])
    assert facts["settings"]["seed"] == "0 to 1 (median and range)"
    html = (tmp_path / "index.html").read_text()
    assert html.count("<figure>") == html.count("<h2>") == 2
    assert html.index("Fig. 1.") < html.index("Fig. 5.")
    assert not re.search(r"(src|href)=.?(https?:|/)", html)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fig10",), "unknown figure 'fig10': choose from fig1"),
        (("fig1", "--scale", "0"), "scale=0.0 is not above 0"),
        (("fig1", "--seeds", "0"), "seeds=0 is not a positive whole number"),
        (("fig1", "--authors", "none.npz"), "none.npz: no such file"),
        (("fig7", "--data", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_bad_input(run, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("reproduce", *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and message in err


def test_data(run, tmp_path):
    (tmp_path / "copy").mkdir()
    text = "userId,movieId,rating,timestamp\n7,3,4.5,0\n7,4,1.0,0\n8,3,2.0,0\n"
    (tmp_path / "copy" / "ratings.csv").write_text(text)
    where = ("--from", str(tmp_path / "copy"), "--out", str(tmp_path / "data"))
    code, out, _ = run("data", "movielens-small", *where, "--json")
    assert code == 0
    folder = str(tmp_path / "data" / "ml-latest-small")
    assert json.loads(out) == {"folder": folder, "users": 2, "items": 2, "ratings": 3}
