"""Where the data lies that tests may read where it is there, and skip without."""

from pathlib import Path

SHARED = Path(__file__).parents[2] / "shared" / "data"
SMALL = SHARED / "ml-latest-small"
