"""A model list is read strictly: what is misspelt, wrong or double is refused with the row's name and the nearest field."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmbroker.catalog import LLMConfig, load_model_list, read_model_list
from llmbroker.errors import ConfigurationError

WHOLE = """
[[llms]]
name = "house"
model = "qwen3"
base_url = "http://127.0.0.1:8080/v1"
provider = "openai"
dialect = "openai-chat"
api_key_ref = ""
headers = { "x-team" = "blue" }
weight = 0.9
parallel = 2
price = { input = 0.5, output = 1 }
tool_params = { temperature = 0 }

[[llms]]
name = "groq"
model = "openai/gpt-oss-120b"
provider = "groq"

[keys.GROQ_API_KEY]
help = "An account is enough."
url = "https://console.groq.com/keys"
free = true

[keys]
OTHER_KEY = "Ask the operator."
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "models.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_field_of_a_model_can_stand_in_a_row(tmp_path: Path) -> None:
    first, second = read_model_list(write(tmp_path, WHOLE))
    assert first == LLMConfig(
        name="house",
        model="qwen3",
        base_url="http://127.0.0.1:8080/v1",
        provider="openai",
        dialect="openai-chat",
        api_key_ref="",
        headers={"x-team": "blue"},
        weight=0.9,
        parallel=2,
        price={"input": 0.5, "output": 1},
        tool_params={"temperature": 0},
    )
    assert second == LLMConfig(name="groq", model="openai/gpt-oss-120b", provider="groq")


def test_help_on_keys_comes_as_a_table_or_as_a_text(tmp_path: Path) -> None:
    keys = load_model_list(write(tmp_path, WHOLE)).keys
    assert (keys["GROQ_API_KEY"].url, keys["GROQ_API_KEY"].free) == ("https://console.groq.com/keys", True)
    assert (keys["OTHER_KEY"].help, keys["OTHER_KEY"].free) == ("Ask the operator.", None)


def test_a_byte_order_mark_is_no_part_of_the_list(tmp_path: Path) -> None:
    assert len(read_model_list(write(tmp_path, "\ufeff" + WHOLE))) == 2


ROW = '[[llms]]\nname = "a"\nmodel = "m"\nprovider = "groq"\n'

WRONG = {
    "a misspelt field": (ROW + 'api_key_reff = "X"\n', ["row 1 (a)", "'api_key_reff'", "'api_key_ref'"]),
    "a field of nobody": (ROW + "zzzzzz = 1\n", ["row 1 (a)", "'zzzzzz'", "known are"]),
    "a misspelt section": (ROW.replace("llms", "llm"), ["'llm'", "'llms'"]),
    "a missing model": ('[[llms]]\nname = "a"\nprovider = "groq"\n', ["row 1 (a)", "model is missing"]),
    "a missing name in the second row": (ROW + '[[llms]]\nmodel = "m"\n', ["row 2", "name is missing"]),
    "a weight of the wrong type": (ROW + 'weight = "high"\n', ["row 1 (a)", "weight"]),
    "a parallel of the wrong type": (ROW + 'parallel = "2"\n', ["row 1 (a)", "parallel"]),
    "headers that are a list": (ROW + "headers = [1]\n", ["row 1 (a)", "headers"]),
    "one name twice": (ROW + ROW, ["'a' comes twice"]),
    "a table instead of rows": ('[llms]\nname = "a"\n', ["[[llms]]"]),
    "no rows": ("", ["no model"]),
    "no TOML": ("[[llms]\n", ["not TOML"]),
    "a misspelt field of a key": (ROW + '[keys.A]\nhepl = "x"\n', ["keys.A", "'hepl'", "'help'"]),
    "a key's help that is a number": (ROW + "[keys]\nA = 3\n", ["keys.A"]),
    "a key's free that is a text": (ROW + '[keys.A]\nfree = "yes"\n', ["keys.A", "free"]),
    "keys that are no table": ("keys = 3\n" + ROW, ["keys is a table"]),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_a_bad_list_is_refused_with_the_place_and_the_way_out(tmp_path: Path, text: str, said: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        read_model_list(path)
    assert [piece for piece in [str(path), *said] if piece not in str(caught.value)] == []


def test_a_file_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_model_list(tmp_path / "absent.toml")


def test_a_folder_is_no_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_model_list(tmp_path)


def test_a_huge_file_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigurationError, match="longer than"):
        read_model_list(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
@given(data=st.binary(max_size=400) | st.text(max_size=200).map(lambda text: (ROW + text).encode("utf-8", "surrogatepass")))
def test_any_bytes_give_a_list_or_a_configuration_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "models.toml"
    path.write_bytes(data)
    try:
        assert all(isinstance(config, LLMConfig) for config in read_model_list(path))
    except ConfigurationError as error:
        assert str(path) in str(error)
