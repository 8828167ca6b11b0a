"""A short run of the fuzzers, and what they have found before: `make fuzz` goes on for long."""

import pytest
import run

FOUND = (  # tries that were wrong once
    "forged:32", "forged:516", "forged:642", "forged:962", "forged:1620", "files:1309", "calls:184",
    "calls:711", "calls:1019", "calls:1908", "calls:4514", "calls:6255", "calls:30524",
)  # fmt: skip
COUNTS = {"forged": 150, "damaged": 100, "files": 200, "commands": 25, "calls": 40}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return str(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", COUNTS)
def test_nothing_ends_in_a_traceback(kind, home, monkeypatch):
    monkeypatch.chdir(home)
    ends = {run.tried(kind, number, home) for number in range(COUNTS[kind])}
    assert len(ends) > (kind != "damaged")  # some were refused, some were not


@pytest.mark.slow
@pytest.mark.parametrize("case", FOUND)
def test_what_was_found_before(case, home, monkeypatch):
    monkeypatch.chdir(home)
    kind, number = case.split(":")
    assert run.tried(kind, int(number), home)
