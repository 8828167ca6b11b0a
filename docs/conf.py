"""The site: `make docs` builds it, `make docs-serve` shows it."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # extension.py, figures/

from scaledsgd import __version__ as release

project = "scaledsgd"
copyright = "the authors of scaledsgd, MIT licence"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "extension",
]
exclude_patterns = ["_build", "gallery/*.ipynb"]

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 3
smartquotes = False
default_role = "code"  # docstrings are plain text with `names`
autodoc_member_order = "bysource"
autodoc_typehints = "none"
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"

# An example of the gallery has a title with a rule below it. Others, such as one that needs a
# server, are read as files.
EXAMPLES = Path(__file__).parents[1] / "examples"
untitled = [path.name for path in EXAMPLES.glob("*.py") if "\n====" not in path.read_text()]

sphinx_gallery_conf = {
    "examples_dirs": str(EXAMPLES),
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"(^|/)(" + "|".join(map(re.escape, untitled)) + ")$",
    "download_all_examples": False,
    "thumbnail_size": (400, 280),
    "within_subsection_order": "extension.as_listed",
    "image_scrapers": ("extension.animations", "matplotlib"),
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "parallel": 2,
}

html_theme = "furo"
html_title = f"scaledsgd {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
