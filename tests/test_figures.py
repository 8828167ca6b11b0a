"""Figures of the README and the docs: each is where the table of figures says, and is written anew
where it stands."""

import doctest
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import figures  # noqa: E402

TABLE = tomllib.loads((ROOT / "benchmarks" / "figures.toml").read_text())


def test_examples():
    assert doctest.testmod(figures).failed == 0


def test_every_figure_has_its_place_and_every_command_a_figure():
    assert len(figures.check(TABLE)) > 600


def test_every_measured_number_of_the_readme_has_a_row():
    readme = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    known = [one.text for one in figures.check(TABLE) if one.file == "README.md"]
    constants = ["0.3", "3.11", "2.0"]  # a step, a version
    lines = [line for line in readme.splitlines() if not line.startswith("    ")]
    for number in re.findall(r"(?<![\w/.-])(?:\d+)?\.\d+|\d+%|\d+,\d+", "\n".join(lines)):
        assert number in known + constants, number


@pytest.fixture
def documents(tmp_path, monkeypatch):
    """A document with a table and a sentence, and the table of figures that fits it."""
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    text = "# A\n\n| | fast | slow |\n|---|---|---|\n| x | **.289** | 1,000 |\n| y | | 3e-8 |\n"
    (tmp_path / "a.md").write_text(text + "\nIt takes 2.5\ns, or 4 s.\n")
    return {
        "command": {"run": {"noise": 0.1}},
        "table": [{
            "in": "a.md", "below": "| | fast |", "rows": ["x", "y"], "columns": ["f", "s"],
            "cell": "{run > t > <row> > <column>}",
        }],
        "text": [{"in": "a.md", "text": "takes {run > seconds} s, or {run > /or ([0-9]+)/ ~0} s"}],
        "left": [],
    }  # fmt: skip


TOLD = '{"t": {"x": {"f": 0.3014, "s": "1,500 ms"}, "y": {"s": 2e-8}}, "seconds": 2.54, "or 5": 0}'


def test_numbers_are_written_where_they_stand_as_they_stood(documents, tmp_path, capsys):
    found = figures.check(documents)
    assert figures.update(found, {"run": TOLD}) == 3  # not .301 and 2.5: they are within the noise
    text = (tmp_path / "a.md").read_text()
    assert "| x | **.301** | 1,500 |\n| y | | 2e-8 |" in text
    assert text.endswith("It takes 2.5\ns, or 5 s.\n")
    shown = capsys.readouterr().out
    assert shown.count("CHANGED") == 3 and shown.count("within noise") == 1


def test_what_was_not_measured_stays(documents, tmp_path, capsys):
    before = (tmp_path / "a.md").read_text()
    assert figures.update(figures.check(documents), {"run": '{"t": {"x": {"f": null}}}'}) == 0
    assert (tmp_path / "a.md").read_text() == before
    assert capsys.readouterr().out.count("not measured") == 5


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("It takes", "That took", "0 times, not once"),
        ("s, or 4 s.", "s, or 4 s. It takes 2.5 s, or 4 s.", "2 times, not once"),
        ("| y | | 3e-8 |\n", "", "not 2 rows"),
        ("| 1,000 |", "| |", None),  # a cell that is blank is left out
        ("3e-8", "little", "0 times, not once"),
    ],
)
def test_a_figure_that_is_not_in_its_place_is_told(documents, tmp_path, old, new, why):
    path = tmp_path / "a.md"
    path.write_text(path.read_text().replace(old, new))
    if why is None:
        assert len(figures.check(documents)) == 4
    else:
        with pytest.raises(figures.Misplaced, match=why):
            figures.check(documents)


def test_a_command_without_a_figure_is_told(documents):
    documents["command"]["idle"] = {"noise": 0}
    with pytest.raises(figures.Misplaced, match="no document has a figure of idle"):
        figures.check(documents)
