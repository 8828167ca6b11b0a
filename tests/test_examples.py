"""Each example runs as its reader would run it, draws, and keeps what it promises."""

import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_none_is_forgotten():
    tested = {"cities", "movies", "one_bit", "sensors", "shop"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs an example in an empty folder and returns what it printed, once its picture is sound."""
    monkeypatch.setenv("MPLBACKEND", "Agg")

    def call(name: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, EXAMPLES / f"{name}.py", *arguments],
            cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        (picture,) = tmp_path.iterdir()
        pixels = matplotlib.image.imread(picture)[..., :3]
        assert min(pixels.shape[:2]) >= 900
        inked = (pixels.min(axis=2) < 0.95).mean()
        assert 0.02 < inked < 0.9  # neither blank nor a blot
        return done.stdout

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
