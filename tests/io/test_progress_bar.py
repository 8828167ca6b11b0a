"""What long work tells in a pipe."""

from __future__ import annotations

import time

import pytest

from scaledsgd.io import progress_bar as module
from scaledsgd.io.progress_bar import progress_bar, silence


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(module, "EVERY", 0.05)
    silence(False)  # whatever a command of another test has asked for
    yield
    silence(False)


def test_a_line_now_and_then_on_stderr_alone(capsys):
    with progress_bar("reading a.csv", 10) as advance:
        advance(5)
        time.sleep(0.3)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and 2 <= len(lines) <= 6
    assert set(lines) == {"reading a.csv, 50%, 0 s"}


def test_what_is_done_sooner_says_nothing(capsys):
    with progress_bar("reading", 10) as advance:
        advance(10, "read")
    assert capsys.readouterr() == ("", "")


def test_quiet_says_nothing(capsys):
    silence(True)
    with progress_bar("reading", 10):
        time.sleep(0.15)
    assert capsys.readouterr() == ("", "")


def test_only_the_innermost_tells(capsys):
    with progress_bar("outer", None), progress_bar("inner", None):
        time.sleep(0.2)
    with progress_bar("outer", None):
        with progress_bar("inner", None):
            pass
        time.sleep(0.2)
    told = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert told[0] == "inner" and told[-1] == "outer"
    assert told == sorted(told)
