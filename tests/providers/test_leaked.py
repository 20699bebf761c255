"""Calls that a model wrote into its text: found where the text is nothing else, left alone where it is anything more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbroker.exchange import CallDelta, Finished, ReasoningDelta, Reply, TextDelta, ToolSet, fold
from llmbroker.messages import validate
from llmbroker.providers.leaked import MOST_CALLS, recover


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = ToolSet(
    [
        tool("get_weather", city={"type": "string"}, days={"type": "integer"}, tags={"type": "array"}),
        tool("spotify.play", song={"type": "string"}),
        tool("now"),
    ]
)
PARIS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
ROME = '{"name": "get_weather", "arguments": {"city": "Rome"}}'


def reply(text: str, finish: Any = "stop", *more: Any) -> Reply:
    return fold([*more, TextDelta(text), Finished(finish)])


def found(text: str) -> list[tuple[str, Any]] | None:
    made = recover(reply(text), TOOLS)
    if not made.tool_calls:
        assert made.text == text
        return None
    assert (made.text, made.finish_reason) == ("", "tool_calls")
    assert made.message["tool_calls"] == made.tool_calls and made.message["content"] is None
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in made.tool_calls]


ONE = [
    f"<tool_call>\n{PARIS}\n</tool_call>",
    f"<tool_call>{PARIS}</tool_call>",
    f"<tool_call>\n{PARIS}\n",
    f"<tool_call>\n[{PARIS}]\n</tool_call>",
    f"<tool_call>\n```json\n{PARIS}\n```\n</tool_call>",
    f"<tools>\n{PARIS}\n</tools>",
    f"<function_call>{PARIS}</function_call>",
    f"<|tool_call|>{PARIS}<|/tool_call|>",
    PARIS,
    f"  {PARIS}\n",
    PARIS.replace("arguments", "parameters"),
    f"```json\n{PARIS}\n```",
    f"```\n{PARIS}\n```",
    f"```tool_call\n{PARIS}\n```",
    f"[{PARIS}]",
    f'{{"tool_calls": [{PARIS}]}}',
    f'{{"type": "function", "function": {PARIS}}}',
    f'{{"id": "x", "type": "function", "function": {PARIS}}}',
    '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
    '{"function": "get_weather", "parameters": {"city": "Paris"}}',
    '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}',
    '{"arguments": {"city": "Paris"}, "name": "get_weather"}',
    f"[TOOL_CALLS] [{PARIS}]",
    f"[TOOL_CALLS]{PARIS}",
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    '[TOOL_CALLS]get_weather{"city": "Paris"}',
    '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris"}',
    '<function=get_weather>{"city": "Paris"}</function>',
    '<function=get_weather>\n{"city": "Paris"}\n</function>',
    '<function=get_weather{"city": "Paris"}</function>',
    '<function=get_weather>{"city": "Paris"}',
    "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    '<function name="get_weather"><parameter name="city">Paris</parameter></function>',
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
    f"<|python_tag|>{PARIS}<|eom_id|>",
    f"{PARIS}<|im_end|>",
    f"<think>I need the weather.</think>\n\n<tool_call>{PARIS}</tool_call>",
    f"<think>\n\n</think>\n{PARIS}",
    f"<tool_call>{PARIS}}}</tool_call>",
]  # fmt: skip


@pytest.mark.parametrize("text", ONE[:-1])
def test_a_text_that_is_one_call_is_a_call(text: str) -> None:
    assert found(text) == [("get_weather", {"city": "Paris"})]


MANY = [
    f"<tool_call>\n{PARIS}\n</tool_call>\n<tool_call>\n{ROME}\n</tool_call>",
    f"<tool_call>\n{PARIS}\n{ROME}\n</tool_call>",
    f"{PARIS}\n{ROME}",
    f"{PARIS}; {ROME}",
    f"{PARIS}, {ROME}",
    f"[{PARIS}, {ROME}]",
    f"```json\n{PARIS}\n```\n```json\n{ROME}\n```",
    f"```json\n{PARIS}\n{ROME}\n```",
    f"[TOOL_CALLS] [{PARIS}, {ROME}]",
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_weather[ARGS]{"city": "Rome"}',
    '<function=get_weather>{"city": "Paris"}</function><function=get_weather>{"city": "Rome"}</function>',
    f"<|python_tag|>{PARIS}; {ROME}<|eot_id|>",
]  # fmt: skip


@pytest.mark.parametrize("text", MANY)
def test_a_text_that_is_several_calls_is_those_calls_in_order(text: str) -> None:
    assert found(text) == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})]


PROSE = [
    f"I would call {PARIS}",
    f"{PARIS} is what I would call.",
    f"To get it, use:\n```json\n{PARIS}\n```",
    f"```json\n{PARIS}\n```\nShall I?",
    f"<tool_call>{PARIS}</tool_call> Done.",
    f"Sure! <tool_call>{PARIS}</tool_call>",
    f"> <tool_call>{PARIS}</tool_call>",
    f'"{PARIS}"',
    f"`{PARIS}`",
    f"<example><tool_call>{PARIS}</tool_call></example>",
    f"<think>Maybe <tool_call>{PARIS}</tool_call></think>",
    f"<think>Maybe <tool_call>{PARIS}</tool_call></think> It is fine.",
    f"<think>{PARIS}",
    f"<tool_call>{PARIS}</tool_call><think>{ROME}</think>",
    '{"name": "nobody", "arguments": {}}',
    f'[{PARIS}, {{"name": "nobody", "arguments": {{}}}}]',
    '{"name": "get_weather"}',
    '{"name": "get_weather", "arguments": [1]}',
    '{"name": "get_weather", "arguments": {"city": "Paris"}, "why": "because"}',
    '{"name": "get_weather", "arguments": {}, "parameters": {}}',
    '{"name": "get_weather", "arguments": {}, "arguments": {"city": "x"}}',
    '{"name": "get", "arguments": {}}',
    '{"name": 3, "arguments": {}}',
    '{"city": "Paris"}',
    "[1, 2]",
    "[]",
    "{}",
    "[TOOL_CALLS]",
    "[TOOL_CALLS]get_weather",
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Par',
    "<tool_call></tool_call>",
    "<function=get_weather>city is Paris</function>",
    "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=city>\nRome\n</parameter>\n</function>",
    '<tool_call>{"name": "get_weather", "arguments": {"city": "Par',
    '{"name": "get_weather", "arguments": {"city": "Par',
    "```json\n" + PARIS,
    "<|python_tag|>print(1)",
    "{" * 5000,
    "[" * 50_000,
    "<tool_call>" * 2000,
    "```" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", PROSE, ids=range(len(PROSE)))
def test_a_text_that_is_anything_more_or_less_stays_text(text: str) -> None:
    assert found(text) is None


@pytest.mark.parametrize(
    "city",
    ["}", "{", '\\"', "</tool_call>", "<tool_call>", "```", "[TOOL_CALLS]", "</function>", "\\\\", '{\\"a\\": 1}', "😀", "]}"],
)  # fmt: skip
@pytest.mark.parametrize("form", ["<tool_call>{}</tool_call>", "{}", "[{}]", "[TOOL_CALLS][{}]", "<|python_tag|>{}"])
def test_G28_marks_and_braces_inside_strings_are_just_characters(form: str, city: str) -> None:
    text = form.replace("{}", f'{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}')
    assert found(text) == [("get_weather", {"city": json.loads(f'"{city}"')})]


def test_the_arguments_are_handed_on_as_they_were_written() -> None:
    arguments = '{"city": "a", "city": "b", "n": 1.50, "big": 123456789012345678901}'
    made = recover(reply(f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>'), TOOLS)
    assert made.tool_calls is not None
    assert made.tool_calls[0]["function"]["arguments"] == arguments


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "get_weather", "arguments": {"city": "Paris"}}}', '{"city": "Paris"}}'),
        ('{"name": "get_weather", "arguments": {"city": "Paris",}}', '{"city": "Paris",}'),
        ('{"name": "get_weather", "arguments": {"city": "Paris"}', '{"city": "Paris"}'),
        ("{'name': 'get_weather', 'arguments': {'city': 'Paris'}}", "{'city': 'Paris'}"),
        ('{"name": "get_weather", "arguments": {"city": "one\ntwo", bad}}', '{"city": "one\ntwo", bad}'),
    ],
)
def test_faulty_json_between_closed_tags_is_a_call_whose_arguments_are_read_elsewhere(written: str, arguments: str) -> None:
    made = recover(reply(f"<tool_call>\n{written}\n</tool_call>"), TOOLS)
    assert made.tool_calls is not None
    assert made.tool_calls[0]["function"] == {"name": "get_weather", "arguments": arguments}


FAULTY = {
    "comments": '{"city": "Paris", // the capital\n "days": 3 /* {days} */}',
    "a trailing comma": '{"city": "Paris", "days": 3,}',
    "a missing comma": '{"city": "Paris" "days": 3}',
    "a bare key": '{"city": "Paris", days: 3}',
    "a word of Python": '{"city": "Paris", "days": 3, "tags": None}',
    "braces in a string": '{"city": "}{", "days": 3,}',
}


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "```\n{}\n```", "<think>x</think>{}"])
@pytest.mark.parametrize("arguments", FAULTY.values(), ids=FAULTY)
def test_a_whole_text_or_fence_with_faulty_json_is_a_call_whose_arguments_are_read_elsewhere(form: str, arguments: str) -> None:
    text = form.replace("{}", f'{{\n  "name": "get_weather",\n  "arguments": {arguments}\n}}')
    made = recover(reply(text), TOOLS)
    assert [call["function"] for call in made.tool_calls or ()] == [{"name": "get_weather", "arguments": arguments}]


@pytest.mark.parametrize("text", [
    '{"name": "get_weather", "arguments": {"city": "Paris",}} or {"city": "Rome"}',
    '{"name": "get_weather", "arguments": {"city": "Paris",}}\n{"name": "get_weather", "arguments": {"city": "Rome",}}',
    '{"name": "get_weather", "arguments": {"city": "Paris",}',
    '{"name": "get_weather", "arguments": {"city": "Paris",}}}',
    '{"name": "get_weather", "arguments": {"city": "Paris}}',
    '{"name": "nobody", "arguments": {"city": "Paris",}}',
    'Use {"name": "get_weather", "arguments": {"city": "Paris",}}',
    '```json\n{"name": "get_weather", "arguments": {"city": "Paris",}}',
])  # fmt: skip
def test_faulty_json_that_is_not_one_whole_call_stays_text(text: str) -> None:
    assert found(text) is None


def test_faulty_json_without_a_closing_tag_may_be_cut_and_stays_text() -> None:
    assert found('<tool_call>{"name": "get_weather", "arguments": {"city": "Paris",}}') is None


def test_texts_in_parameter_tags_are_json_only_where_the_schema_asks_for_no_string() -> None:
    given_ = {"city": "\n42\n", "days": "3", "tags": "[1]", "more": "True"}
    text = "".join(f"<parameter={name}>{value}</parameter>" for name, value in given_.items())
    text = f"<function=get_weather>{text}</function>"
    assert found(text) == [("get_weather", {"city": "42", "days": 3, "tags": [1], "more": True})]


def test_lines_inside_a_parameter_tag_stay() -> None:
    assert found("<function=get_weather>\n<parameter=city>\n  a\n  b\n\n</parameter>\n</function>") == [
        ("get_weather", {"city": "  a\n  b\n"})
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "now", "arguments": {}}',
        '{"name": "now", "arguments": null}',
        "<function=now></function>",
        '{"name": "now", "arguments": ""}',
    ],
)
def test_a_call_may_have_no_arguments(text: str) -> None:
    assert found(text) == [("now", {})]


@pytest.mark.parametrize("name", ["spotify.play", "spotify_play"])
def test_C16_a_name_is_known_as_it_was_declared_and_as_it_was_sent(name: str) -> None:
    assert found(f'{{"name": "{name}", "arguments": {{"song": "x"}}}}') == [(name, {"song": "x"})]


@pytest.mark.parametrize("finish", ["length", "content_filter", "refusal", "error"])
def test_an_answer_that_was_stopped_is_left_alone(finish: str) -> None:
    given_ = reply(PARIS, finish)
    assert recover(given_, TOOLS) is given_


def test_a_reply_that_has_calls_is_left_alone() -> None:
    given_ = reply(PARIS, "stop", CallDelta(0, "a", "now", "{}"))
    assert recover(given_, TOOLS) is given_


def test_F9_calls_inside_reasoning_are_never_run_and_the_reasoning_stays() -> None:
    given_ = fold([ReasoningDelta(f"<tool_call>{PARIS}</tool_call>"), TextDelta("It is fine."), Finished("stop")])
    assert recover(given_, TOOLS) is given_
    made = recover(fold([ReasoningDelta("first"), TextDelta(f"<think>then</think>{ROME}"), Finished("stop")]), TOOLS)
    assert made.reasoning == "first\nthen" == made.message["reasoning_content"]


def test_the_message_of_found_calls_makes_a_valid_history() -> None:
    made = recover(reply(f"{PARIS}\n{ROME}"), TOOLS)
    results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in made.tool_calls or ()]
    assert validate([{"role": "user", "content": "q"}, made.message, *results]) == []


def test_ids_are_fresh_and_unique() -> None:
    made = recover(reply("\n".join([PARIS] * 20)), TOOLS)
    assert made.tool_calls is not None
    assert len({c["id"] for c in made.tool_calls}) == 20


def test_the_number_of_marks_around_a_call_is_bounded() -> None:
    text = PARIS
    for name in ("tool_call", "tools", "function_call", "tool_use"):
        text = f"<{name}>{text}</{name}>"
    assert found(text) == [("get_weather", {"city": "Paris"})]
    for name in ("toolcall", "functioncall"):
        text = f"<{name}>{text}</{name}>"
    assert found(text) is None


def test_the_number_of_calls_is_bounded() -> None:
    assert found("\n".join([PARIS] * (MOST_CALLS + 1))) is None


def test_usage_and_the_rest_of_the_reply_stay() -> None:
    made = recover(reply(PARIS), TOOLS)
    assert (made.raw_finish_reason, made.model, made.usage) == (None, reply(PARIS).model, None)


MARKS = "<tool_call> </tool_call> ```json ``` [TOOL_CALLS] <function=now> </function> <parameter=a> </parameter>"
MORE = '<|python_tag|> <think> </think> [ ] { } , " now {} [ARGS] <arg_key> text'
pieces = st.sampled_from([PARIS, ROME, "\n", *MARKS.split(), *MORE.split()])


@given(st.lists(pieces, max_size=12).map("".join) | st.text(max_size=80))
def test_any_text_is_calls_of_known_tools_or_stays_as_it_is(text: str) -> None:
    if not text:
        return
    given_ = reply(text)
    made = recover(given_, TOOLS)
    if made is not given_:
        assert {c["function"]["name"] for c in made.tool_calls or ()} <= {"get_weather", "now", "spotify.play", "spotify_play"}
        outside = text.split("</think>")[-1] if text.lstrip().startswith("<think>") else text
        assert "text" not in outside and len(made.tool_calls or ()) <= outside.count("get_weather") + outside.count("now")
