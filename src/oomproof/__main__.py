"""``python -m oomproof``."""

import sys

from oomproof.cli import main

if __name__ == "__main__":
    sys.exit(main())
