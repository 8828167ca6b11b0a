"""The benchmark of speed: what it prints is what it timed."""

import time

import numpy as np
import pytest
from commands import runner

from scaledsgd.research.benchmarks import race, speed, threads


def test_an_epoch_is_timed_without_its_start():
    class Trainer:
        seconds = 0.0

    def slow_to_start(epochs: int):
        time.sleep(0.2 + 0.01 * epochs)
        trainer = Trainer()
        trainer.seconds = 0.004 * epochs
        return trainer

    pace = race.race({"slow": slow_to_start, "quick": lambda n: time.sleep(0.002 * n)}, 1)
    assert pace["slow"].epoch == pytest.approx(0.01, rel=0.3)
    assert pace["slow"].steps == pytest.approx(0.004)
    assert pace["slow"].epoch > 2 * pace["quick"].epoch
    assert np.isnan(pace["quick"].steps)


@pytest.mark.slow
def test_rates_are_of_the_samples_that_were_run():
    result = speed.rates(speed.Size(40_000, (2,), 1), 2, "cpu")
    assert [fact["loss"] for fact in result.facts["rows"]] == ["squared", "bpr"]
    for fact in result.facts["rows"]:
        # Whatever the machine: faster than Python, slower than light.
        assert 1e5 < fact["rates"]["scaled"] < 1e10
    assert len(result.rows[0]) == len(result.header)


@pytest.mark.slow
def test_exponents_are_those_of_the_times():
    x = np.array([1e3, 1e4, 1e6])
    assert speed._power(x, 3e-9 * x**1.2) == pytest.approx(1.2)
    found = speed.measured(1000, 20_000, 2)
    assert 0 < found["seconds"] < 1


@pytest.mark.slow
def test_rates_by_threads_are_told_with_their_limits(monkeypatch):
    monkeypatch.setattr(threads, "libmf", lambda: "no C++ compiler")
    result = threads.by_threads(40_000, (3,), 1, 2)
    told = ["squared", "logistic", "bpr", "choices, softmax", "choices, squared"]
    assert [fact["who"] for fact in result.facts["rows"]] == told
    assert "no C++ compiler" in result.words
    for fact in result.facts["rows"]:
        assert fact["threads"] == [1, 2]
        limits = fact.get("limit", [])  # none is known of the squared loss of choices
        assert all(1e2 < rate < 1e10 for rate in fact["rates"] + limits)
    assert len(result.rows[0]) == len(result.header)


def test_others_that_are_missing_are_named(monkeypatch):
    monkeypatch.setattr(race, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"libmf, cornac, implicit \(pip install"):
        speed.peers(speed.QUICK, 1, "cpu")


def test_a_gpu_runs_only_what_makes_sense_there(capsys):
    code, _, told = runner(capsys)("bench", "speed", "--device", "cuda", "--part", "growth")
    assert code == 2 and "only --part rates" in told
