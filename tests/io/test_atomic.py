"""Files that are there as a whole, for those whom the user's mask lets read them."""

import os
import stat
import time

import pytest

from scaledsgd.io.atomic import replace_file, whole_folder


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_has_the_mode_that_any_other_would_have(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        replace_file(tmp_path / "m", b"new")
        assert os.umask(mask) == mask  # which is left as it was
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == mode


def test_who_has_the_old_file_open_reads_on_in_it(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"old content")
    with path.open("rb") as reader:
        replace_file(path, b"new")
        assert reader.read() == b"old content"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["m"]


def test_content_and_name_are_on_the_disk_before_it_returns(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def note(handle):
        synced.append(stat.S_IFMT(os.fstat(handle).st_mode))
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    replace_file(tmp_path / "m", b"new")
    assert synced == [stat.S_IFREG, stat.S_IFDIR]


def test_folders_that_a_killed_writer_left_are_cleared_away_after_a_day(tmp_path):
    for name, age in (("dead.part", 2 * 86_400), ("alive.part", 3600)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    with whole_folder(tmp_path / "new") as part:
        (part / "a").write_text("a")
    assert sorted(os.listdir(tmp_path)) == ["alive.part", "new"]


def test_a_folder_that_could_not_be_filled_is_not_there(tmp_path):
    with pytest.raises(KeyError), whole_folder(tmp_path / "new") as part:
        (part / "a").write_text("a")
        raise KeyError
    assert os.listdir(tmp_path) == []
