"""A few faults of every kind: `make faults` has hundreds."""

import random
import shutil

import faults
import pytest
from streams import events, write

needs_redis = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "kind"), [("a.jsonl", "ranker"), ("a.parquet", "matrix")])
def test_killed_after_its_checkpoint_has_advanced(name, kind, tmp_path):
    faults.kills(write(tmp_path / name, events(4000)), kind, tmp_path, 4, random.Random(0))


@needs_redis
def test_a_wire_that_breaks_and_a_server_that_dies(tmp_path):
    for part in ("cuts", "restarts"):
        (tmp_path / part).mkdir()
    assert faults.cuts(tmp_path / "cuts", 4, random.Random(0), 4000) >= 4
    assert faults.restarts(tmp_path / "restarts", 2) == 2


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_file_that_is_rotated_again_and_again(name, tmp_path):
    assert faults.rotations(tmp_path, 4, random.Random(1), name) == 4


def test_no_room_for_a_checkpoint(tmp_path):
    faults.full_disk(tmp_path)


def test_memory_and_files_stay_what_they_are(tmp_path):
    told = list(faults.soak(tmp_path, 0.1))
    assert len(told) >= 2
    assert len({part["files"] for part in told}) == 1
    assert told[-1]["megabytes"] < told[0]["megabytes"] + 20
