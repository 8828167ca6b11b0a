"""The demo does what it says, and its page needs nothing but itself."""

from __future__ import annotations

import json
import re

import pytest

from scaledsgd.cli.main import main
from scaledsgd.research import demo

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """stdout and the folder of one run."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("demo")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["demo", "--out", str(folder / "page")]) == 0
    return out.getvalue(), folder / "page"


def test_the_last_line_is_the_path_of_the_page(shown):
    out, folder = shown
    assert out.splitlines()[-1] == str(folder / "index.html")
    assert sorted(path.name for path in folder.iterdir()) == ["convergence.png", "index.html"]
    assert (folder / "convergence.png").stat().st_size < 150_000


def test_the_page_is_whole(shown):
    html = (shown[1] / "index.html").read_text()
    assert html.startswith("<!doctype html>") and html.endswith("</html>\n")
    assert html.count("<figure>") == html.count("<h2>") == html.count("<table") == 3
    assert not re.search(r"(src|href)=.?(https?:|/)", html)


def test_text_fits_the_terminal(shown):
    assert max(map(len, shown[0].splitlines()[:-1])) <= 80


def test_scaled_sgd_keeps_its_pace_and_sgd_does_not():
    losses = demo.convergence().facts
    for case in ("well-conditioned", "ill-conditioned"):
        assert losses[f"{case} ScaledSGD"][-1] <= 1e-16
        assert len(losses[f"{case} ScaledSGD"]) <= 50
    assert losses["well-conditioned SGD"][-1] <= 1e-16
    assert losses["ill-conditioned SGD"][-1] >= 1e-9


def test_the_bridge_comes_back():
    assert demo.distances().facts["largest_error"] < 1e-6


def test_colours_are_ranked():
    facts = demo.colours().facts
    assert facts["auc"] > 0.95
    assert "darkorange" in facts["similar"]["orange"] and "darkcyan" in facts["similar"]["teal"]


def test_json(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(tmp_path / "index.html") and len(found) == 4
