"""`python -m scaledsgd` is the command `scaledsgd`."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
