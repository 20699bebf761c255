"""Where keys come from: the order of places, users, changes, stored keys, and faults that show no value."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keyring
import keyring.backend
import keyring.backends.fail
import pytest
from cryptography.fernet import Fernet

from llmbroker.credentials import MASTER, KeyRing, Secret
from llmbroker.errors import ConfigurationError, InvalidRequestError, StoreError
from llmbroker.journal import Store, open_store
from llmbroker.transports.blocking import BlockingIO

CANARY = "canary-1234567890-abcdef"
REF = "OPENAI_API_KEY"


@pytest.fixture
def port() -> Iterator[BlockingIO]:
    made = BlockingIO()
    yield made
    made.close()


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    return tmp_path / ".env"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = open_store(tmp_path / "broker.db")
    yield made
    made.close()


@pytest.fixture
def environ() -> dict[str, str]:
    return {MASTER: Fernet.generate_key().decode()}


@pytest.fixture
def make(port: BlockingIO, env_file: Path, environ: dict[str, str]) -> Callable[..., KeyRing]:
    def ring(**options: Any) -> KeyRing:
        return KeyRing(port, **{"env_file": env_file, "environ": environ, "keyring": False, **options})

    return ring


def found(ring: KeyRing, *refs: str, scope: str | None = None) -> tuple[str, str] | None:
    """The value and the source that the ring finds."""
    secret = ring._port.drive(ring.resolve(refs or (REF,), scope))
    return None if secret is None else (secret.reveal(), secret.source)


Make = Callable[..., KeyRing]


# -- the order of places ---------------------------------------------------------------------------------------------------


def test_places_are_asked_in_their_order(make: Make, environ: dict[str, str], env_file: Path, store: Store) -> None:
    given = {REF: "from-secrets"}
    ring = make(secrets=given, store=store)
    ring.put(REF, "from-store")
    env_file.write_text(f"{REF}=from-file\n")
    environ[REF] = "from-environment"
    seen = [found(ring)]
    given.clear()
    seen.append(found(ring))
    del environ[REF]
    seen.append(found(ring))
    env_file.unlink()
    seen.append(found(ring))
    ring.remove(REF)
    seen.append(found(ring))
    assert seen == [
        ("from-secrets", f"secrets {REF}"),
        ("from-environment", f"environment {REF}"),
        ("from-file", f".env {REF}"),
        ("from-store", f"stored {REF}"),
        None,
    ]


def test_of_several_names_the_first_that_has_a_key_counts(make: Make, environ: dict[str, str]) -> None:
    environ.update({"B": "b", "C": "c"})
    assert found(make(), "A", "B", "C") == ("b", "environment B")


@pytest.mark.parametrize("blank", ["", " ", "\t\n"], ids=repr)
def test_blank_values_count_as_missing_everywhere(make: Make, environ: dict[str, str], env_file: Path, blank: str) -> None:
    environ[REF] = blank
    env_file.write_text(f'{REF}="{blank.strip()}"\n')
    assert found(make(secrets={REF: blank})) is None
    assert found(make(secrets=lambda ref, scope: blank)) is None


def test_blanks_around_a_key_are_cut_off(make: Make, environ: dict[str, str]) -> None:
    environ[REF] = "  key\r\n"
    assert found(make()) == ("key", f"environment {REF}")


def test_which_says_the_place_and_not_the_value(make: Make, environ: dict[str, str], port: BlockingIO) -> None:
    environ[REF] = CANARY
    assert port.drive(make().which([REF])) == f"environment {REF}"
    assert port.drive(make().which(["NOTHING"])) is None


def test_without_a_file_and_a_store_only_the_environment_is_asked(make: Make) -> None:
    ring = make(env_file=None)
    assert (found(ring), ring.places(), ring.names()) == (None, ["the environment"], [])
    with pytest.raises(ConfigurationError, match="no database"):
        ring.put(REF, "x")


# -- changes ---------------------------------------------------------------------------------------------------------------


def test_a_changed_key_is_used_at_once(make: Make, environ: dict[str, str], env_file: Path, store: Store) -> None:
    ring, other = make(store=store), make(store=store)
    other.put(REF, "stored-1")
    seen = [found(ring)]
    other.put(REF, "stored-2")
    seen.append(found(ring))
    env_file.write_text(f"{REF}=file-1\n")
    seen.append(found(ring))
    env_file.write_text(f"{REF}=file-22\n")
    seen.append(found(ring))
    environ[REF] = "env-1"
    seen.append(found(ring))
    environ[REF] = "env-2"
    seen.append(found(ring))
    assert [pair and pair[0] for pair in seen] == ["stored-1", "stored-2", "file-1", "file-22", "env-1", "env-2"]


def test_nothing_is_copied_from_one_place_to_another(make: Make, environ: dict[str, str], env_file: Path, store: Store) -> None:
    environ["A_KEY"] = CANARY
    env_file.write_text("B_KEY=" + CANARY)
    ring = make(store=store)
    found(ring, "A_KEY")
    found(ring, "B_KEY")
    assert ring.names() == []
    assert "B_KEY" not in environ
    assert "B_KEY" not in os.environ


# -- the .env file ---------------------------------------------------------------------------------------------------------

ENV_LINES = {
    "plain": (b"K=abc", "abc"),
    "export": (b"export K=abc", "abc"),
    "quotes": (b"K='abc'", "abc"),
    "double quotes and a comment": (b'K="abc" # mine', "abc"),
    "blanks around": (b"K = abc  ", "abc"),
    "byte order mark": (b"\xef\xbb\xbfK=abc", "abc"),
    "windows line ends": (b"X=1\r\nK=abc\r\n", "abc"),
    "the last one counts": (b"K=old\nK=abc", "abc"),
    "a name without value": (b"K", None),
    "a comment": (b"# K=abc", None),
    "a line that is nothing": (b"!!! ???\nK=abc", "abc"),
}


@pytest.mark.parametrize(("content", "expected"), ENV_LINES.values(), ids=ENV_LINES)
def test_an_env_file_is_read_as_people_write_it(make: Make, env_file: Path, content: bytes, expected: str | None) -> None:
    env_file.write_bytes(content)
    pair = found(make(), "K")
    assert (pair and pair[0]) == expected


def test_an_env_file_that_cannot_be_read_is_said_and_holds_no_keys(
    make: Make, env_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env_file.write_bytes(b"K=abc\xff\xfe" + CANARY.encode())
    ring = make()
    assert (found(ring, "K"), found(ring, "K")) == (None, None)
    assert caplog.text.count("cannot be read") == 1
    assert CANARY not in caplog.text


def test_a_folder_named_env_is_no_file_of_keys(make: Make, env_file: Path) -> None:
    env_file.mkdir()
    assert found(make()) is None


# -- what the user hands in ------------------------------------------------------------------------------------------------


class Vault:
    def resolve(self, ref: str, scope: str | None) -> str:
        return {(REF, None): "shared", (REF, "bob"): "bobs"}[ref, scope]


class AsyncVault:
    async def resolve(self, ref: str, scope: str | None) -> str | None:
        await asyncio.sleep(0)
        return Vault().resolve(ref, scope) if scope in (None, "bob") else None


async def async_function(ref: str, scope: str | None) -> str | None:
    return await AsyncVault().resolve(ref, scope)


GIVEN: dict[str, Any] = {
    "mapping": {REF: "shared", f"bob/{REF}": "bobs"},
    "mapping of secrets": {REF: Secret("shared"), f"bob/{REF}": Secret("bobs")},
    "callable": lambda ref, scope: {(REF, None): "shared", (REF, "bob"): "bobs"}.get((ref, scope)),
    "object": Vault(),
    "async callable": async_function,
    "async object": AsyncVault(),
}


@pytest.mark.parametrize("secrets", GIVEN.values(), ids=GIVEN)
def test_every_kind_of_source_knows_users(make: Make, secrets: Any) -> None:
    ring = make(secrets=secrets)
    keys = [found(ring), found(ring, scope="bob"), found(ring, scope="eve")]
    assert [pair and pair[0] for pair in keys] == ["shared", "bobs", "shared"]


@pytest.mark.parametrize("secrets", GIVEN.values(), ids=GIVEN)
async def test_every_kind_of_source_works_in_an_event_loop(secrets: Any) -> None:
    from llmbroker.transports.aio import AsyncIO

    port = AsyncIO()
    ring = KeyRing(port, secrets=secrets, env_file=None, environ={})
    secret = await ring.resolve((REF,), "bob")
    assert secret is not None
    assert secret.reveal() == "bobs"
    await port.aclose()


@pytest.mark.parametrize("secrets", ["a-key", 3, [], Vault, object()], ids=["str", "int", "list", "class", "object"])
def test_what_is_no_source_of_keys_is_refused_without_showing_it(make: Make, secrets: Any) -> None:
    with pytest.raises(InvalidRequestError, match="secrets is a mapping") as caught:
        make(secrets=secrets)
    assert "a-key" not in str(caught.value)


def test_a_source_that_fails_ends_the_search(make: Make, environ: dict[str, str]) -> None:
    def down(ref: str, scope: str | None) -> str:
        raise OSError(f"vault down, token {CANARY}")

    environ[REF] = "another account's key"
    with pytest.raises(ConfigurationError, match="failed for OPENAI_API_KEY with OSError") as caught:
        found(make(secrets=down))
    assert CANARY not in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


# -- users -----------------------------------------------------------------------------------------------------------------


def test_a_user_s_own_key_comes_first_then_the_shared_one_if_allowed(make: Make, environ: dict[str, str], store: Store) -> None:
    environ[REF] = "shared"
    ring = make(store=store)
    ring.put(REF, "bobs", "bob")
    closed = make(store=store, shared=False)
    assert found(ring, scope="bob") == ("bobs", f"stored {REF} of bob")
    assert found(ring, scope="eve") == ("shared", f"environment {REF}")
    assert found(closed, scope="bob") == ("bobs", f"stored {REF} of bob")
    assert found(closed, scope="eve") is None
    assert found(closed) == ("shared", f"environment {REF}")


def test_a_user_s_own_key_under_the_second_name_beats_the_shared_one_under_the_first(
    make: Make, environ: dict[str, str], store: Store
) -> None:
    environ["A"] = "shared"
    ring = make(store=store)
    ring.put("B", "bobs", "bob")
    pair = found(ring, "A", "B", scope="bob")
    assert pair is not None
    assert pair[0] == "bobs"


@pytest.mark.parametrize("scope", ["", " ", 3], ids=repr)
def test_a_user_without_a_name_is_refused(make: Make, scope: Any) -> None:
    with pytest.raises(InvalidRequestError, match="scope"):
        found(make(), scope=scope)


# -- stored keys -----------------------------------------------------------------------------------------------------------


def test_what_is_stored_is_ciphertext(make: Make, store: Store, tmp_path: Path) -> None:
    ring = make(store=store)
    ring.put(REF, CANARY)
    ring.put(REF, CANARY, "bob")
    assert ring.names() == [(REF, None), (REF, "bob")]
    store.close()
    for path in tmp_path.iterdir():
        assert CANARY.encode() not in path.read_bytes()


def test_without_a_master_key_storing_is_refused_with_the_command(make: Make, store: Store, environ: dict[str, str]) -> None:
    del environ[MASTER]
    ring = make(store=store)
    with pytest.raises(ConfigurationError, match="was not stored") as caught:
        ring.put(REF, CANARY)
    assert f"export {MASTER}=" in str(caught.value)
    assert ring.names() == []


def test_a_stored_key_without_its_master_key_is_an_error_and_not_a_missing_key(
    make: Make, store: Store, environ: dict[str, str]
) -> None:
    make(store=store).put(REF, CANARY)
    for other in (None, Fernet.generate_key().decode()):
        environ.pop(MASTER)
        if other:
            environ[MASTER] = other
        with pytest.raises(ConfigurationError, match=MASTER):
            found(make(store=store))
        environ[MASTER] = "x"
    with pytest.raises(ConfigurationError, match="no master key"):
        found(make(store=store))


def test_the_master_key_may_be_changed(make: Make, store: Store, environ: dict[str, str]) -> None:
    ring = make(store=store)
    ring.put("OLD", "old")
    old, new = environ[MASTER], Fernet.generate_key().decode()
    environ[MASTER] = f"{new},{old}"
    ring.put("NEW", "new")
    assert (found(ring, "OLD"), found(ring, "NEW")) == (("old", "stored OLD"), ("new", "stored NEW"))
    environ[MASTER] = new
    assert found(ring, "NEW") == ("new", "stored NEW")


def test_the_master_key_may_stand_in_the_env_file(make: Make, store: Store, environ: dict[str, str], env_file: Path) -> None:
    env_file.write_text(f"{MASTER}={environ.pop(MASTER)}\n")
    ring = make(store=store)
    ring.put(REF, "x")
    assert found(ring) == ("x", f"stored {REF}")


@pytest.mark.parametrize("place", [("OTHER_KEY", None), (REF, "eve")], ids=["another name", "another user"])
def test_a_row_copied_to_another_place_does_not_give_the_key(make: Make, store: Store, place: tuple[str, str | None]) -> None:
    ring = make(store=store)
    ring.put(REF, CANARY, "bob")
    store.set_secret(*place, store.secret(REF, "bob"))
    with pytest.raises(ConfigurationError, match="belongs to another") as caught:
        found(ring, place[0], scope=place[1])
    assert CANARY not in everything_about(caught.value)


@pytest.mark.parametrize("ref", ["", "A B", "a/b", "A=b", None, 3], ids=repr)
def test_what_is_no_name_of_a_key_is_not_stored(make: Make, store: Store, ref: Any) -> None:
    with pytest.raises(InvalidRequestError, match="OPENAI_API_KEY"):
        make(store=store).put(ref, "x")


def test_an_empty_value_is_not_stored(make: Make, store: Store) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        make(store=store).put(REF, "  ")


def test_removing_says_whether_there_was_one(make: Make, store: Store) -> None:
    ring = make(store=store)
    ring.put(REF, "x")
    assert (ring.remove(REF), ring.remove(REF)) == (True, False)


def test_a_store_that_cannot_be_read_is_an_error_and_not_a_missing_key(make: Make, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"no database" * 200)
    with pytest.raises(StoreError):
        found(make(store=open_store(tmp_path / "broken.db")))


def test_a_user_whose_stored_key_cannot_be_read_has_the_shared_one_if_allowed(
    make: Make, environ: dict[str, str], store: Store
) -> None:
    make(store=store).put(REF, "bobs", scope="bob")
    environ[REF] = "shared"
    del environ[MASTER]
    assert found(make(store=store, keyring=False), scope="bob") == ("shared", f"environment {REF}")
    with pytest.raises(ConfigurationError, match="no master key"):
        found(make(store=store, keyring=False, shared=False), scope="bob")


def test_a_key_that_was_read_before_is_used_on_while_its_store_cannot_be_read(
    make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = make(store=store)
    ring.put(REF, "bobs", scope="bob")
    assert found(ring, scope="bob") is not None
    asked: list[str] = []

    def broken(ref: str, scope: str | None) -> bytes | None:
        asked.append(ref)
        raise StoreError("away", reason="missing")

    monkeypatch.setattr(store, "secret", broken)
    assert found(ring, scope="bob") == ("bobs", f"stored {REF} of bob")
    for _ in range(3):
        with pytest.raises(StoreError, match="away"):
            found(ring, scope="eve")
    assert len(asked) == 1  # it is left alone for a while


def test_a_stored_key_that_was_removed_is_not_used_on(make: Make, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = make(store=store)
    ring.put(REF, "bobs", scope="bob")
    found(ring, scope="bob")
    ring.remove(REF, scope="bob")
    assert found(ring, scope="bob") is None

    def broken(ref: str, scope: str | None) -> bytes | None:
        raise StoreError("away", reason="missing")

    monkeypatch.setattr(store, "secret", broken)
    with pytest.raises(StoreError, match="away"):
        found(ring, scope="bob")


def test_without_the_packages_for_encryption_the_message_says_what_to_install(
    make: Make, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(ConfigurationError, match=r"llmbroker\[keys\]"):
        make(store=store).put(REF, "x")


class MemoryKeyring(keyring.backend.KeyringBackend):
    """A keyring of a desktop, in memory."""

    priority = 5.0  # type: ignore[assignment]

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.held[service, username] = password


@pytest.fixture
def desktop() -> Iterator[MemoryKeyring]:
    before = keyring.get_keyring()
    made = MemoryKeyring()
    keyring.set_keyring(made)
    yield made
    keyring.set_keyring(before)


def test_the_system_s_keyring_keeps_a_master_key_that_is_made_on_first_use(
    make: Make, store: Store, environ: dict[str, str], desktop: MemoryKeyring
) -> None:
    del environ[MASTER]
    ring = make(store=store, keyring=True)
    assert found(ring) is None
    assert desktop.held == {}
    ring.put(REF, "x")
    assert list(desktop.held) == [("llmbroker", "master-key")]
    assert found(ring) == ("x", f"stored {REF}")


def test_a_system_without_a_keyring_is_like_one_without_a_master_key(
    make: Make, store: Store, environ: dict[str, str], desktop: MemoryKeyring
) -> None:
    keyring.set_keyring(keyring.backends.fail.Keyring())
    del environ[MASTER]
    with pytest.raises(ConfigurationError, match="no master key"):
        make(store=store, keyring=True).put(REF, "x")


# -- canaries --------------------------------------------------------------------------------------------------------------


def everything_about(error: BaseException) -> str:
    """All that a log, a crash reporter or a debugger shows of an error: every frame's variables, causes and fields."""
    shown = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    return shown + repr(error) + str(vars(error)) + repr(pickle.dumps(error))


BAD = {
    "line break": CANARY + "\nX-Evil: 1",
    "blank inside": CANARY + " x",
    "not ascii": CANARY + "é",
    "control": CANARY + "\x7f",
}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
@pytest.mark.parametrize("place", ["environment", "secrets", "callable", "file", "put"])
def test_a_value_that_no_header_can_carry_is_refused_without_showing_it(
    make: Make, environ: dict[str, str], env_file: Path, store: Store, place: str, value: str
) -> None:
    holder = {REF: Secret(value)}
    if place == "environment":
        ring = make(environ=Hidden(environ, value))
    elif place == "file":
        env_file.write_text(f"{REF}='{value}'\n", encoding="utf-8")
        ring = make()
    elif place == "put":
        ring = make(store=store)
    else:
        ring = make(secrets=holder if place == "secrets" else lambda ref, scope: holder[ref].reveal())
    given = Secret(value)
    del value
    with pytest.raises(ConfigurationError, match=REF) as caught:
        ring.put(REF, given) if place == "put" else found(ring)
    trace = caught.tb.tb_next  # without this test's own frame, where pytest keeps the parameters
    shown = everything_about(caught.value.with_traceback(trace))
    assert "no header can carry" in shown
    assert CANARY not in shown


class Hidden(dict[str, str]):
    """An environment whose repr hides its values, as that of this process should not stand in a traceback either."""

    def __init__(self, values: dict[str, str], value: str) -> None:
        super().__init__(values)
        self[REF] = value

    def __repr__(self) -> str:
        return "<environment>"


def test_no_log_of_any_level_shows_a_key(
    make: Make, environ: dict[str, str], env_file: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        environ[REF] = CANARY
        env_file.write_text(f"F={CANARY}\nbad line {CANARY} =\n")
        ring = make(secrets=lambda ref, scope: CANARY if ref == "S" else None, store=store)
        ring.put("P", CANARY)
        assert [found(ring, ref) is not None for ref in (REF, "F", "S", "P")] == [True] * 4
    assert CANARY not in caplog.text
    assert CANARY not in repr(ring) + repr(vars(ring))


def test_a_ring_cleans_texts_of_all_keys_it_found(make: Make, environ: dict[str, str]) -> None:
    environ["ODD_KEY"] = "completely-unusual-value/1"
    ring = make()
    found(ring, "ODD_KEY")
    assert ring.clean("bad completely-unusual-value%2F1 and sk-abcdefghijkl") == "bad *** and sk-***"


def test_the_error_for_a_missing_key_says_which_names_where_and_what_to_do(make: Make, env_file: Path, store: Store) -> None:
    error = make(secrets={}, store=store).missing(("A_KEY", "B_KEY"), model="m", keys_url="https://keys.example", provider="p")
    text = str(error)
    for part in (
        "m needs a key",
        "A_KEY or B_KEY",
        "secrets=",
        "the environment",
        str(env_file),
        "stored keys",
        "https://keys.example",
    ):
        assert part in text
    assert error.refs == ("A_KEY", "B_KEY")


def test_importing_credentials_loads_no_package_that_only_some_need() -> None:
    import subprocess

    code = "import llmbroker.credentials, sys; print([m for m in ('dotenv', 'cryptography', 'keyring') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
