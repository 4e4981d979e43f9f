"""Runs the command line with `python -m trainmaster`."""

from __future__ import annotations

import sys

from trainmaster.cli import main

if __name__ == "__main__":
    sys.exit(main())
