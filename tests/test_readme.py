"""The README's Python runs as it is written, and says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.splitlines()) <= 40  # one screen
    said: dict = {}
    exec(compile(code, "README.md", "exec"), said)
    model, M = said["model"], said["M"]
    assert np.abs(model.row_factors_ @ model.column_factors_.T - M).max() < 1e-4
    assert said["shop"].recommend("dee", k=1)[0] == ["fig"]
    assert np.abs(said["found"] - said["points"]).max() < 1e-4
    assert said["auc"] > 0.85


def test_every_file_that_the_readme_names_is_there():
    named = re.findall(r"\]\(([^)]+)\)", README) + re.findall(r"`(src/[^`]+|docs/[^`]+)`", README)
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_picture_is_small():
    assert (ROOT / "docs" / "convergence.png").stat().st_size < 150_000


def test_the_guide_explains_every_setting():
    from scaledsgd import DistanceCompleter, ItemRanker, MatrixCompleter

    guide = (ROOT / "docs" / "usage.md").read_text()
    for make in (MatrixCompleter, DistanceCompleter, ItemRanker):
        for name, default in make().get_params().items():
            (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", guide, re.MULTILINE)
            told = row.split("|")[0]
            shown = f'"{default}"' if isinstance(default, str) else str(default)
            assert shown in told, f"{make.__name__}: {name} is {shown}, the guide says {told}"
