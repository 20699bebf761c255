"""The example programs run as they stand, on the embedded model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
PRINTS = {
    "weather.py": ["Paris", "20", 'get_weather {"city":"Paris"} -> It is 20°C in Paris'],
    "local_stream.py": ["Paris", "tokens"],
}


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTS)


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_what_it_should(name: str, model: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    for word in PRINTS[name]:
        assert word in done.stdout
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 40
