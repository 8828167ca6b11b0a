"""Names of Numba, llvmlite and Ray that may change without notice: all listed, each in one file."""

import re
from pathlib import Path

import scaledsgd
from scaledsgd import engines

PACKAGE = Path(scaledsgd.__file__).parent
ENGINES = PACKAGE / "engines"
LISTED = dict(re.findall(r"^\| `(.+?)` \| (\S+) \|", engines.__doc__ or "", re.MULTILINE))

# What is private by its look, wherever it stands.
PRIVATE = re.compile(
    r"llvmlite|numba\.(?!extending\b|types\b|njit\b|prange\b|get_num)\w+|ray\._\w+"
    r"|RAY_(?!ADDRESS)[A-Z_]+|ray_current_\w+|_set_\w+|context\.(?:make|get)_\w+"
)


def code(path: Path) -> str:
    """The source without docstrings, which may speak of anything."""
    return re.sub(r'"""(?s:.*?)"""', "", path.read_text())


def users(name: str) -> set[Path]:
    return {path for path in PACKAGE.rglob("*.py") if name in code(path)}


def test_every_listed_name_is_used_in_its_file_alone():
    assert len(LISTED) > 10
    for name, file in LISTED.items():
        assert users(name) == {(ENGINES / file).resolve()}, name


def test_every_private_name_is_listed():
    found = {(name, path) for path in PACKAGE.rglob("*.py") for name in PRIVATE.findall(code(path))}
    missing = {(name, path.name) for name, path in found
               if not any(part in name for part in LISTED)}  # fmt: skip
    assert not missing
