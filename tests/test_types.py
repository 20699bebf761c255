"""What a type checker sees of the public names: nothing is lost on the way to a user's program."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import llmbroker
from llmbroker import AsyncBroker, Broker, research, transports
from llmbroker.broker.caller import ChatOptions

CHECKOUT = Path(__file__).parents[1]


def checked(path: Path, cache: Path) -> str:
    """Return what mypy says of a program, as strict as it can be, from outside of the checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", str(path)],
        capture_output=True,
        text=True,
        cwd=cache,
        env={**os.environ, "MYPYPATH": str(CHECKOUT / "src")},
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_program_of_a_user_is_typed_to_the_end_and_every_public_name_is_known(tmp_path: Path) -> None:
    assert checked(CHECKOUT / "tests" / "typed_program.py", tmp_path).startswith("Success")
    names = [
        f"from {module.__name__} import {name} as {module.__name__.replace('.', '_')}_{name}"
        for module in (llmbroker, research, transports)
        for name in module.__all__
    ]
    every = tmp_path / "every.py"
    every.write_text("\n".join(names))
    assert checked(every, tmp_path).startswith("Success")
    every.write_text("from llmbroker import NoSuchName")
    assert "has no attribute" in checked(every, tmp_path)


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(llmbroker.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("face", [Broker, AsyncBroker])
def test_ask_takes_every_option_of_chat(face: type) -> None:
    options = inspect.signature(face.chat).parameters.values()  # type: ignore[attr-defined]
    assert {each.name for each in options if each.kind is each.KEYWORD_ONLY} == set(get_type_hints(ChatOptions))
