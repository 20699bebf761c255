"""What a broker is made of: sources, places of keys, the journal; what is wrong is refused as it is made, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.broker.worlds import World, ladder, member, ok, refuse

from llmbroker import AsyncBroker, Broker, ConfigurationError, InvalidRequestError, LLMConfig, NoLLMAvailableError
from llmbroker.journal import open_store

ROW = '[[llms]]\nname = "{name}"\nmodel = "{name}"\n{more}\n'


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ('provider = "nobody"', "nobody"),
        ('base_url = "http://models.test/v1"\ndialect = "klingon"', "klingon"),
        ('base_url = "http://models.test/v1"\nwieght = 1', "weight"),
        ('base_url = "http://models.test/v1"\nweight = nan', "weight"),
        ('base_url = "http://models.test/v1"\nparallel = 0', "parallel"),
        ("", "base_url"),
    ],
    ids=["provider", "dialect", "typing error", "weight", "parallel", "no address"],
)
def test_a_bad_row_of_a_model_list_is_refused_with_the_models_name(tmp_path: Path, more: str, says: str) -> None:
    path = tmp_path / "models.toml"
    path.write_text(ROW.format(name="good", more='base_url = "http://models.test/v1"') + ROW.format(name="bad-one", more=more))
    for make in (Broker, AsyncBroker):
        with pytest.raises(ConfigurationError) as caught:
            make(path, io=World().port, journal=False)
        assert "bad-one" in str(caught.value)
        assert says in str(caught.value)


@pytest.mark.parametrize("address", ["mysql://host/base", "mongodb://host/base", "redis://host"])
def test_an_address_of_an_unknown_kind_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="names no store"):
        Broker(address)
    with pytest.raises(ConfigurationError, match="names no store"):
        Broker(pool=[member("a")], journal=address)
    assert list(tmp_path.iterdir()) == []


def test_home_is_a_folder() -> None:
    with pytest.raises(ConfigurationError, match="home"):
        Broker(pool=[member("a")], home=5)  # type: ignore[arg-type]


class OneArgument:
    async def resolve(self, ref: str) -> str:
        return ref


@pytest.mark.parametrize("secrets", [lambda ref: ref, lambda: "k", OneArgument()], ids=["one", "none", "object"])
def test_a_source_of_keys_that_cannot_be_asked_for_a_user_is_refused_as_the_broker_is_made(secrets: Any) -> None:
    with pytest.raises(InvalidRequestError, match="scope"):
        Broker(pool=[member("a")], secrets=secrets, journal=False)


def test_a_source_of_keys_may_take_its_arguments_in_any_way(face: Any) -> None:
    for secrets in (lambda *named: "k", lambda ref, scope=None, cache=True: "k", {"K": "k"}.get):
        assert face(World(a=ok("A")), [member("a", api_key_ref="K")], secrets=secrets).chat("hi").text == "A"


def test_an_operator_may_keep_the_shared_key_from_users(face: Any) -> None:
    world = World(a=ok("A"))
    keys = {"K": "shared", "bob/K": "bobs"}
    broker = face(world, [member("a", api_key_ref="K")], secrets=keys, shared_keys=False)
    broker.chat("hi")
    broker.of("bob").chat("hi")
    with pytest.raises(NoLLMAvailableError, match="key of his own") as caught:
        broker.of("ann").chat("hi")
    assert caught.value.reason == "no_keys"
    assert [key for _, _, key in world.hits] == ["shared", "bobs"]


def test_users_have_the_shared_key_where_nobody_says_otherwise(face: Any) -> None:
    world = World(a=ok("A"))
    face(world, [member("a", api_key_ref="K")], secrets={"K": "shared"}).of("ann").chat("hi")
    assert world.hits[0][2] == "shared"


def test_a_database_holds_list_journal_and_switches_together(face: Any, tmp_path: Path) -> None:
    store = open_store(tmp_path / "broker.db")
    store.set_models(ladder("a", "b"))
    store.close()
    world = World(a=ok("A"), b=ok("B"))
    path = tmp_path / "broker.db"
    first = face(world, None, source=path, journal=None)
    first.chat("hi")
    first.disable_llm("a")
    later = face(world, None, source=path, journal=None)
    later.chat("hi")
    assert later.statuses() == [("a", "ok"), ("b", "ok")]
    in_code = face(world, [member("b")], source=path, journal=None)
    assert list(in_code.snapshot()) == ["b"]
    assert len(in_code.rows()) == 2


def test_the_folder_is_the_argument_then_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMBROKER_HOME", str(tmp_path / "variable"))
    world = World(a=ok("A"))
    Broker(pool=[member("a")], io=world.port, home=tmp_path / "argument").ask("hi")
    assert (tmp_path / "argument" / "journal.db").exists()
    assert not (tmp_path / "variable").exists()
    Broker(pool=[member("a")], io=world.port).ask("hi")
    assert (tmp_path / "variable" / "journal.db").exists()


@pytest.mark.parametrize("kind", ["path", "text", "address", "plain name"])
def test_a_journal_is_a_path_or_an_address(tmp_path: Path, kind: str) -> None:
    where: Any = {
        "path": tmp_path / "deep" / "j.db",
        "text": str(tmp_path / "j.sqlite"),
        "address": f"sqlite:///{tmp_path}/k.db",
        "plain name": str(tmp_path / "calls"),
    }[kind]
    broker = Broker(pool=[member("a")], io=World(a=ok("A")).port, journal=where, home=tmp_path / "home")
    reply = broker.ask("hi")
    assert [row.id for row in broker.calls()] == [reply.call_id]
    broker.close()
    assert not (tmp_path / "home").exists()


def test_a_pinned_name_and_an_alias_are_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-" + "x" * 20)
    broker = Broker(direct=["opus"], io=World().port, journal=False)
    config = broker._engine.setup.direct["opus"]
    assert isinstance(config, LLMConfig)
    assert broker.direct(name=config.name).model == broker.direct("opus").model == config.model


@pytest.mark.parametrize(("wait", "says"), [(0, "wait=0"), (3, "within 3.0 s")])
def test_the_error_says_that_waiting_would_not_have_helped(face: Any, wait: float, says: str) -> None:
    broker = face(World(a=refuse(429, "slow down", retry_after="30"), b=ok("B")), ladder("a", "b"))
    broker.chat("hi")
    broker.disable_llm("b")
    with pytest.raises(NoLLMAvailableError, match="No model is free") as caught:
        broker.chat("hi", wait=wait)
    assert says in str(caught.value)
    assert "a rate limited (slow down) for 30 s more" in str(caught.value)
    assert caught.value.retry_at is not None


def test_the_error_of_a_failing_source_of_keys_is_readable(face: Any) -> None:
    def failing(ref: str, scope: str | None) -> str:
        raise OSError("vault is sealed: token s.abcdef")

    with pytest.raises(NoLLMAvailableError) as caught:
        face(World(a=ok("A")), [member("a", api_key_ref="K")], secrets=failing).chat("hi")
    text = str(caught.value)
    assert "failed for K with OSError" in text
    assert ".." not in text
    assert "abcdef" not in text
