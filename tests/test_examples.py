"""Each example runs as its reader would run it, draws, and keeps what it promises."""

import re
import runpy
import sys
import warnings
from pathlib import Path

import matplotlib
import matplotlib.image
import matplotlib.pyplot as plt
import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"
TESTED = {
    "changing_taste", "cities", "cold_start", "devices", "genes", "ill_conditioned", "molecule",
    "movies", "one_bit", "recommender", "sensors", "shop", "traffic", "uncertainty",
}  # fmt: skip


def test_none_is_forgotten():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"`{name}.py" in listed for name in TESTED)


@pytest.mark.parametrize("name", sorted(TESTED - {"shop"}))  # which needs a server
def test_a_page_of_the_gallery_has_a_title_and_cells(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    title, rule = text.splitlines()[1:3]
    assert text.startswith('"""\n') and rule == "=" * len(title)
    assert len(re.findall(r"^# %%\n# \S.*\n# -+\n", text, re.MULTILINE)) >= 2
    assert f"    python examples/{name}.py" in text


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Runs an example in an empty folder and returns what it printed, once its picture is sound.
    In this process, which has loaded and compiled what the others need as well."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")

    def call(name: str, *arguments: str) -> str:
        path = EXAMPLES / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *arguments])
        with plt.rc_context(), warnings.catch_warnings():
            warnings.simplefilter("error")
            runpy.run_path(str(path), run_name="__main__")
        plt.close("all")
        told = capfd.readouterr()
        assert told.err == ""
        (picture,) = tmp_path.iterdir()
        pixels = matplotlib.image.imread(picture)[..., :3]
        pixels = pixels / (255 if pixels.dtype.kind == "u" else 1)
        assert min(pixels.shape[:2]) >= (500 if picture.suffix == ".gif" else 800)
        inked = (pixels.min(axis=2) < 0.95).mean()
        assert 0.02 < inked < 0.95  # neither blank nor a blot
        return told.out

    return call


def number(pattern: str, text: str) -> float:
    """The number where the pattern has its group."""
    found = re.search(pattern, text)
    assert found, f"no {pattern!r} in {text!r}"
    return float(found[1])


def test_cities_are_found_more_precisely_than_they_were_told(run):
    told = run("cities", "--out", "world.png")
    assert "(2%), to 10 km each" in told
    assert number(r"median error ([\d.]+) km", told) < 2.5
    assert number(r"largest ([\d.]+) km", told) < 10
    assert number(r"middle (\d+) km", told) == pytest.approx(6371, abs=5)


def test_sensors_are_found_where_the_network_is_dense_and_the_misfit_tells_where_not(run):
    told = run("sensors")
    rows = {int(r): (float(e), float(m)) for r, e, m in re.findall(
        r"^ *(\d+) m +\d+ +([\d.]+) m +[\d.]+ m +([\d.]+)%$", told, re.MULTILINE)}  # fmt: skip
    assert len(rows) == 8
    dense, sparse = rows[200], rows[80]
    assert dense[0] < 2 and dense[1] < 1  # metres, and percent: the noise of the ranges is 1%
    assert sparse[0] > 20 and sparse[1] > 5


def test_one_bit_answers_give_probabilities(run):
    told = run("one_bit")
    assert number(r"rank found: (\d+)", told) == 3
    assert number(r"mean error of the probabilities ([\d.]+)", told) < 0.08
    reached = number(r"guessed right ([\d.]+)", told)
    assert reached > number(r"true probabilities: ([\d.]+)", told) - 0.02
    assert number(r"off by at most ([\d.]+)", told) < 0.05


def test_films_are_ranked_and_have_neighbours(run):
    told = run("movies")
    assert number(r"test AUC ([\d.]+)", told) > 0.8
    neighbours = re.findall(r"^(film \d+): (.+)$", told, re.MULTILINE)
    assert len(neighbours) == 5
    for film, alike in neighbours:
        assert len(set(alike.split("; "))) == 5 and film not in alike.split("; ")


def test_a_shop_learns_while_it_sells(run):
    pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
    told = run("shop")
    shares = [int(found) for found in re.findall(r"purchases: (\d+)%", told)]
    assert len(shares) == 8 and shares[-1] >= 2 * shares[0] and shares[-1] >= 20


def test_events_alone_tell_what_belongs_together(run):
    told = run("recommender")
    best, ours, most = (
        number(rf"{name}: (\d+)%", told)
        for name in ("best sellers", "recommended", "tastes were known")
    )
    assert 1.5 * best < ours <= most + 3 and ours > 0.8 * most
    teas = "Assam Darjeeling Sencha Oolong Rooibos Matcha Chamomile Mint Earl-Grey Lapsang Chai"
    beside = re.search("beside Sencha: (.*)", told)
    assert beside and len(set(beside[1].split(", ")) & set(teas.split())) >= 3


def test_newcomers_get_what_suits_them_after_a_few_purchases(run):
    told = run("cold_start")
    shares = [int(share) for share in re.findall(r"purchases known: .* (\d+)%", told)]
    regular = number(r"with 19 known: (\d+)%", told)
    assert len(shares) == 8 and shares[1] > 1.2 * shares[0] and shares[-1] > 1.6 * shares[0]
    assert shares[-1] > 0.85 * regular


def test_a_stream_follows_a_change_and_a_still_model_does_not(run):
    told = run("changing_taste")
    followed, left = (
        [float(n) for n in re.findall(r"\d\.\d+", line)]
        for line in told.splitlines()
        if "before the change" in line
    )
    assert followed[0] < 0.6 and followed[1] > 1 and followed[2] < 0.7
    assert left[2] > 1


def test_intervals_of_ratings_hold_what_they_say(run):
    told = run("uncertainty")
    for level, share in re.findall(r"within the (\d+)% interval: (\d+)%", told):
        assert abs(int(level) - int(share)) <= 4
    sure, unsure = re.search(r"off by ([\d.]+) stars, the least sure by ([\d.]+)", told).groups()  # type: ignore[union-attr]
    assert float(unsure) > 1.2 * float(sure)


def test_a_molecule_comes_out_of_short_distances(run):
    told = run("molecule")
    assert number(r"off by ([\d.]+) ångström", told) < 1
    assert number(r"is (\d+) ångström long", told) > 3 * number(r"none above (\d+) ", told)


def test_gaps_of_genes_are_filled_better_than_by_neighbours(run):
    told = run("genes")
    mean, near, ours = (float(error) for error in re.findall(r"off by ([\d.]+) standard", told))
    assert ours < 0.9 * near < near < mean
    assert number(r"(\d+)% right", told) > 60


def test_speeds_are_filled_better_than_a_reading_is_precise(run):
    told = run("traffic")
    assert number(r"off by ([\d.]+) km/h", told) < 2.5
    assert number(r"hour is off by ([\d.]+)", told) > 5


def test_scaled_steps_learn_weak_patterns_and_plain_ones_do_not(run):
    told = run("ill_conditioned")
    sgd, scaled = ([float(n) for n in re.findall(r"([\d.]+)%", line)]
                   for line in told.splitlines() if "wrong by" in line)  # fmt: skip
    assert sgd[2] > 50 and max(scaled) < 0.1


def test_whoever_runs_the_samples_learns_the_same(run):
    told = run("devices", "--without", "cluster")
    assert "cluster: left out" in told
    errors = [float(error) for error in re.findall(r"error ([\d.e-]+) after", told)]
    assert errors and max(errors) < 0.01
