"""Files are replaced whole or not at all, by all that keep some, with one rule about who may read them."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmbroker import Conversation
from llmbroker.catalog import home_catalog, keep_catalog
from llmbroker.catalog.packaged import _PACKAGED
from llmbroker.faces.cli import kept
from llmbroker.files import replace, replacing


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def conversation(folder: Path) -> Path:
    Conversation([{"role": "user", "content": "hi"}]).save(folder / "talk.json")
    return folder / "talk.json"


def catalog(folder: Path) -> Path:
    keep_catalog(_PACKAGED.read_bytes(), folder)
    assert home_catalog(folder).pool
    return folder / "catalog.toml"


def last(folder: Path) -> Path:
    assert kept.kept_path().parent == folder
    kept.keep([{"role": "user", "content": "hi"}])
    return kept.kept_path()


KEEPERS = [conversation, catalog, last]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLMBROKER_HOME", str(tmp_path))


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("keeper", KEEPERS)
def test_a_new_file_is_its_owner_s_alone_and_one_that_was_there_keeps_its_permissions(
    keeper: Callable[[Path], Path], tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        path = keeper(tmp_path)
        assert mode(path) == 0o600
        path.chmod(0o640)
        assert mode(keeper(tmp_path)) == 0o640
    finally:
        os.umask(before)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("keeper", KEEPERS)
def test_the_content_is_on_the_disk_before_it_takes_its_place_and_so_is_the_place_itself(
    keeper: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, bool]] = []
    fsync, rename = os.fsync, os.replace

    def synced(fd: int) -> None:
        done.append(("sync", stat.S_ISDIR(os.fstat(fd).st_mode)))
        fsync(fd)

    def replaced(self: Path, target: Any) -> None:
        done.append(("replace", False))
        rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    keeper(tmp_path)
    assert done == [("sync", False), ("replace", False), *([("sync", True)] if os.name == "posix" else [])]


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace(path, b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as part:
        part.write_bytes(b"half")
        raise ZeroDivisionError
    with pytest.raises(OSError, match=r"directory|denied"):
        replace(tmp_path, b"a folder is no file")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert not list(tmp_path.parent.glob(f".{tmp_path.name[:40]}.*.part"))


def test_threads_that_replace_one_file_each_leave_it_whole(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 240)
    faults: list[BaseException] = []

    def write(letter: bytes) -> None:
        try:
            for _ in range(20):
                replace(path, letter * 5000)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            faults.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    content = path.read_bytes()
    assert content == content[:1] * 5000
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
