"""What the site needs beyond Sphinx: figures that the build draws, commands, docstrings."""

from __future__ import annotations

import re
import shutil
from importlib import import_module
from pathlib import Path

import matplotlib
from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx_gallery.scrapers import figure_rst

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parent
FIGURES, MADE = DOCS / "figures", DOCS / "made"

# Pages outside docs/ that have a page of their own on the site.
ELSEWHERE = {
    "../SECURITY.md": "security.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
    "../README.md": "index.md",
}

_INK = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color",
        "ytick.color")  # fmt: skip
STYLES = {
    theme: dict.fromkeys(_INK, ink)
    | {
        "figure.facecolor": paper, "axes.facecolor": paper, "legend.facecolor": paper,
        "savefig.transparent": True, "grid.color": grid, "legend.framealpha": 0.8,
        "legend.edgecolor": grid, "font.size": 11, "axes.spines.top": False,
        "axes.spines.right": False, "svg.fonttype": "path", "svg.hashsalt": "scaledsgd",
    }
    for theme, ink, paper, grid in [
        ("light", "#222222", "#ffffff", "#dddddd"),
        ("dark", "#d5d7d9", "#131416", "#3a3c40"),
    ]
}  # fmt: skip


def draw_figures(app) -> None:
    """Every `draw` of figures/, once for light pages and once for dark ones."""
    MADE.mkdir(exist_ok=True)
    package = max(path.stat().st_mtime for path in DOCS.glob("../src/**/*.py"))
    tables = max(path.stat().st_mtime for path in DOCS.glob("*.md"))  # benchmarks.py draws those
    for script in sorted(FIGURES.glob("[!_]*.py")):
        made = {theme: MADE / f"{script.stem}-{theme}.svg" for theme in STYLES}
        newest = max(package, tables, script.stat().st_mtime)
        if all(path.exists() and path.stat().st_mtime > newest for path in made.values()):
            continue
        draw = import_module(f"figures.{script.stem}").draw
        for theme, path in made.items():
            with plt.rc_context(STYLES[theme]):
                draw().savefig(path, metadata={"Date": None})
                plt.close("all")


class Drawn(Directive):
    """A figure of figures/ by its name; the text below is for those who cannot see it."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        said = " ".join(self.content)
        if not said:
            raise self.error("a figure needs words")
        up = "../" * self.state.document.settings.env.docname.count("/")
        return [
            nodes.image(uri=f"{up}made/{self.arguments[0]}-{theme}.svg", alt=said,
                        classes=[f"only-{theme}", "drawn"])
            for theme in STYLES
        ]  # fmt: skip


class Command(Directive):
    """What a command does, and its options, from the command itself; of a group, all of them."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        import typer

        from scaledsgd.cli.main import app

        name = self.arguments[0]
        command = typer.main.get_command(app).commands[name]
        group = getattr(command, "commands", None)
        parts = {f"{name} {one}": part for one, part in group.items()} if group else {name: command}
        lines = [line for part in parts.items() for line in _described(*part)]
        box = nodes.container()
        text = StringList(lines, source=f"scaledsgd {name}")
        self.state.nested_parse(text, self.content_offset, box)
        return box.children


def _described(name: str, command) -> list[str]:
    """A command in Markdown."""
    arguments = [p.metavar or p.name.upper() for p in command.params if p.opts[0][0] != "-"]
    lines = [f"**`scaledsgd {' '.join([name, *arguments])}`**", "", *command.help.splitlines(), ""]
    options = [p for p in command.params if p.opts[0][0] == "-" and p.opts[0] != "--help"]
    if options:
        lines += ["| option | |", "|---|---|"]
    for option in options:
        typed = f"`{', '.join(option.opts)} {option.metavar or ''}".rstrip() + "`"
        told = " ".join((option.help or "").split()).replace("|", r"\|")
        lines.append(f"| {typed} | {told}{' Must be given.' if option.required else ''} |")
    return [*lines, ""]


def typeset(app, what, name, obj, options, lines: list[str]) -> None:
    """A docstring's `setting : what it means` as a list of terms, and no ruled heading above."""
    text = "\n".join(lines)
    text = re.sub(r"^Parameters\n-+\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^([a-z]\w*(?:, \w+)*) : ", r"`\1`\n    ", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=\w)@(?=\d)", r"\\@", text)  # NDCG@20 is nobody's address
    lines[:] = text.splitlines()


def send_home(app, docname: str, source: list[str]) -> None:
    """Links from docs/ to the pages outside go to their places on the site, and what is named after
    a file there is named by its title here."""
    for there, here in ELSEWHERE.items():
        source[0] = source[0].replace(f"]({there}", f"]({here}")
    source[0] = re.sub(r"\[[\w/]+\.md\]\(", "[](", source[0])


def as_listed(file: str) -> int:
    """Examples have the order of their list."""
    return (DOCS.parent / "examples" / "README.md").read_text().index(f"`{Path(file).name}")


def animations(block, block_vars: dict, gallery_conf: dict) -> str:
    """A scraper of sphinx-gallery: the .gif that an example has saved under its own name, in the
    place of the figure that it was drawn on."""
    saved = Path(block_vars["src_file"]).with_suffix(".gif")
    if not saved.exists():
        return ""
    plt.close("all")
    shown = Path(next(block_vars["image_path_iterator"])).with_suffix(".gif")
    shutil.move(saved, shown)
    return figure_rst([str(shown)], gallery_conf["src_dir"])


def setup(app):
    app.add_directive("drawn", Drawn)
    app.add_directive("command", Command)
    app.connect("builder-inited", draw_figures)
    app.connect("autodoc-process-docstring", typeset)
    app.connect("source-read", send_home)
    return {"parallel_read_safe": True}
