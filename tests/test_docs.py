"""The pages of docs/: their code runs, their links lead somewhere, and nothing public is left out.
(`make docs` checks the links within the site once more, and runs the gallery.)"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import code_blocks
import pytest
import typer

import scaledsgd
from scaledsgd.cli.main import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TEXTS = [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("examples/*.md")]

# Pictures that are measured, not drawn by the build, by the command that does.
MEASURED = {
    "recommender_optimisers.png": "bench recommend ml-latest-small --part optimisers",
    "convergence.png": "scaledsgd demo",
}


def with_code(page: Path) -> bool:
    return any(kind in code_blocks.RUN and not why for _, kind, _, why in code_blocks.blocks(page))


@pytest.mark.slow
@pytest.mark.parametrize("page", [*filter(with_code, PAGES)], ids=lambda page: page.stem)
def test_the_code_of_a_page(page, tmp_path):
    assert code_blocks.run(page, tmp_path) > 0


def test_a_block_that_fails_or_prints_something_else_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    for text, why in [
        ("```python\nx = 1\n```\n\n```python\nprint(x + y)\n```\n", "page.md, line 6: NameError"),
        ("```python\nprint(1)\n```\n\n```output\n2\n```\n", "page.md, line 6: it prints\n1"),
        ("```console\n$ echo so\nno\n```\n", "page.md, line 2: echo so: it prints\nso"),
        ("```console\n$ scaledsgd fit none.csv --out m\n```\n", "none.csv"),
    ]:
        page.write_text(text)
        with pytest.raises(code_blocks.Broken, match=re.escape(why)):
            code_blocks.run(page, tmp_path)
    page.write_text("<!-- not run: no need -->\n```python\n1 / 0\n```\n")
    assert code_blocks.run(page, tmp_path) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_blocks_say_what_they_are(page):
    """What has no kind would neither run nor say why not."""
    openings = re.findall(r"^```(.*)\n(?:.*\n)*?```$", page.read_text(), re.MULTILINE)
    assert all(re.match(r"\{|(python|console|output)$", kind) for kind in openings), openings


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_links_lead_somewhere(text):
    written = re.sub(r"^```(.|\n)*?^```$", "", text.read_text(), flags=re.MULTILINE)
    for target in re.findall(r"\]\(<?([^)>\s]+)>?\)", written):
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme == "https" and "." in parts.netloc, target
        elif parts.path and not (text.parent == DOCS and parts.path.startswith("gallery/")):
            assert (text.parent / parts.path).exists(), target


def test_every_picture_is_drawn_by_the_build_or_measured_by_a_command():
    drawn = {path.stem for path in (DOCS / "figures").glob("[!_]*.py")}
    for page in PAGES:
        source = page.read_text()
        assert set(re.findall(r"^```\{drawn\} (\w+)$", source, re.MULTILINE)) <= drawn
        for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", source):
            assert MEASURED[name] in source, f"{page.name}: {name}"


def commands() -> dict[str, typer.core.TyperCommand]:
    """All commands by how they are typed."""
    top = typer.main.get_command(app).commands
    deeper = {f"bench {name}": command for name, command in top["bench"].commands.items()}
    return {name: command for name, command in top.items() if name != "bench"} | deeper


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_commands_have_the_options_that_are_typed(text):
    known = commands()
    line = re.compile(r"^(?: {4}|\$ )scaledsgd ((?:.|\\\n)+)$", re.MULTILINE)
    for typed in line.findall(text.read_text()):
        words = typed.split("#")[0].replace("\\\n", "").split()
        name = " ".join(words[:2]) if words[0] == "bench" else words[0]
        assert name in known, f"scaledsgd {typed}"
        params = known[name].params
        options = {option for part in params for option in (*part.opts, *part.secondary_opts)}
        asked = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", " ".join(words)))
        assert asked <= options, f"scaledsgd {typed}: {asked - options}"


def test_every_public_name_and_command_has_its_place_and_an_example():
    python, typed = (DOCS / "api.md").read_text(), (DOCS / "commands.md").read_text()
    for name in scaledsgd.__all__:
        assert re.search(rf"^\.\. auto\w+:: {name}$", python, re.MULTILINE), name
        assert ">>>" in getattr(scaledsgd, name).__doc__, name
    for name in typer.main.get_command(app).commands:
        assert f"```{{command}} {name}\n" in typed, name
        assert f"$ scaledsgd {name} " in typed.replace("\n", " "), name
