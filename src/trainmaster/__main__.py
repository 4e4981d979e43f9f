"""Starts the command line when you run `python -m trainmaster`."""

from __future__ import annotations

import sys

from trainmaster.cli import main

if __name__ == "__main__":
    sys.exit(main())
