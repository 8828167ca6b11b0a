"""Tables of the pages, as they are printed, for figures of them."""

from pathlib import Path

DOCS = Path(__file__).parents[1]
OURS, OTHERS = "tab:red", ["#4c78a8", "#7fa8cc", "#9aa5b1"]


def table(page: str, begins: str) -> list[list[str]]:
    """The cells of the first table of a page whose header begins so, without the ruler."""
    lines = (DOCS / page).read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(begins))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[:1] + rows[2:]
