"""``python -m llmbroker``: the command line."""

from __future__ import annotations

import sys

from llmbroker.faces.cli import main

if __name__ == "__main__":
    sys.exit(main())
