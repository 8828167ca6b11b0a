"""The cache of compiled functions: what one process has kept, another does not take for its own."""

import importlib.util
import sys

import pytest

SOURCE = """
from scaledsgd.core.compiled import njit

@njit(cache=True)
def double(x):
    return 2 * x
"""


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """The same function, as several processes import it."""
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE)

    def imported():
        spec = importlib.util.spec_from_file_location("kernels", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "kernels", module)
        spec.loader.exec_module(module)
        return module.double

    return imported


def test_forms_that_are_kept_at_the_same_moment_do_not_take_each_others_place(processes):
    one, other = processes(), processes()
    file, empty = one._cache._cache_file, other._cache._cache_file._load_index()
    other._cache._cache_file._load_index = lambda: empty  # it has looked before the one is done
    save = file._save_index

    def overtaken(index):
        save(index)
        assert other(2.5) == 5.0

    file._save_index = overtaken
    assert one(2) == 4
    later = processes()
    assert [later(x) for x in (3.5, 3)] == [7.0, 6]


def test_what_is_kept_is_found_again(processes):
    assert processes()(2) == 4
    again = processes()
    assert again(2) == 4 and sum(again.stats.cache_hits.values()) == 1
