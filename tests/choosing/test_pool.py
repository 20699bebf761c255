"""Members, lanes, leases, and what a call needs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.choosing.parts import half, lane, need

from llmbroker.catalog import LLMConfig
from llmbroker.exchange import make_request
from llmbroker.health import BROKEN, HOUR
from llmbroker.pool import OPERATIONS, Key, Lane, Lease, Member, needed

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}]}]


@pytest.mark.parametrize(
    ("arguments", "features"),
    [
        ({}, ()),
        ({"tools": [TOOL]}, ("tools",)),
        ({"response_format": {"type": "json_object"}}, ("json_object",)),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, ("json_schema",)),
        ({"response_format": {"type": "text"}}, ()),
        ({"messages": IMAGE}, ("images",)),
        ({"messages": IMAGE, "tools": [TOOL]}, ("images", "tools")),
    ],
)
def test_what_a_request_needs(arguments: dict[str, Any], features: tuple[str, ...]) -> None:
    assert needed(make_request(arguments.pop("messages", "hi"), **arguments)) == features


def test_a_lease_counts_once_in_and_once_out() -> None:
    one = lane("a", parallel=1)
    lease = Lease(one, 0.0)
    assert not one.free(0.0)
    assert lease.release()
    assert not lease.release()
    assert one.free(0.0)
    assert (one.member.running, one.key.running) == (0, 0)


def test_a_lease_of_a_recovering_lane_takes_the_room() -> None:
    one = lane("a")
    one.health.fail(BROKEN, 0.0, 0.0, 1.0, half)
    lease = Lease(one, 2.0)
    assert not one.free(2.0)
    lease.release()
    assert one.free(2.0)


def test_a_lease_from_before_an_incident_does_not_count_as_its_probe() -> None:
    one = lane("a")
    old = Lease(one, 0.0)
    one.health.fail(BROKEN, 1.0, 0.0, 1.0, half)
    assert one.free(2.0), "the old attempt may hang: it must not keep the probe away"
    probe = Lease(one, 2.0)
    old.release()
    assert not one.free(2.0)
    probe.release()


def test_lanes_of_one_key_share_its_health() -> None:
    key = Key("environment K")
    one, other = lane("a", key), lane("b", key)
    key.health.fail(BROKEN, 0.0, 0.0, 5.0, half)
    assert not one.free(1.0)
    assert not other.free(1.0)


def test_a_lacking_feature_is_believed_for_an_hour() -> None:
    one = lane("a")
    wanted = need(tools=[TOOL])
    one.learn_lack("tools", wanted, 0.0)
    assert one.cannot(wanted, HOUR - 1) == "tools"
    assert one.cannot(need(), 1.0) is None
    assert one.cannot(wanted, HOUR + 1) is None


def test_a_refused_parameter_rules_out_only_calls_that_send_it() -> None:
    one = lane("a")
    one.learn_lack("logprobs", need(params={"logprobs": True}), 0.0)
    assert one.cannot(need(params={"logprobs": True}), 1.0) == "logprobs"
    assert one.cannot(need(params={"seed": 1}), 1.0) is None


def test_the_smallest_request_that_was_too_long_counts() -> None:
    one = lane("a")
    for size in (5000, 1000, 3000):
        one.learn_lack("context", need("x" * size), 0.0)
    assert one.cannot(need("x" * 1000), 1.0) == "context"
    assert one.cannot(need("x" * 999), 1.0) is None


def test_a_known_window_rules_out_what_cannot_fit() -> None:
    one = lane("a")
    one.member.window = 100
    assert one.cannot(need("x" * 601), 0.0) == "context"
    assert one.cannot(need("x" * 599), 0.0) is None


def test_the_normal_time_of_an_unknown_model_is_generous() -> None:
    one = lane("a")
    assert one.member.normal(stream=False) == 60.0
    for _ in range(3):
        one.member.latency.add(1.0)
    assert one.member.normal(stream=False) == pytest.approx(3.0)
    assert one.member.normal(stream=True) == 60.0


def test_the_illness_that_ends_last_is_shown() -> None:
    one = lane("a")
    one.member.health.fail(BROKEN, 0.0, 0.0, 5.0, half)
    one.key.health.fail(BROKEN, 0.0, 0.0, 9.0, half)
    assert one.ill(1.0) is one.key.health
    assert one.ill(10.0) is None


def test_nothing_shows_a_key() -> None:
    one: Lane = lane("a")
    assert "some-secret" not in repr(one.deployment) + repr(one.key) + str(one.key.source)


def test_an_operation_has_a_record_of_its_own_where_its_answers_plainly_take_another_time() -> None:
    made = Member(LLMConfig(name="m", model="m", base_url="http://m.test/v1"), 0, frozenset(), None)
    for number in range(6):
        for operation, seconds in (("short", 1.0), ("middle", 1.4), ("long", 30.0)):
            for record in made.records(False, operation):
                record.add(seconds)
        assert (made.record(False, "long") is made.latency) is (number < 4), "a few answers come first"
    assert made.record(False, "long").usual() == 30.0
    assert made.record(False, "middle") is made.latency, "what is alike is one record, with more in it"
    assert made.record(False, None) is made.record(False, "unheard of") is made.latency
    assert made.record(True, "long") is made.first


def test_the_records_of_operations_are_bounded() -> None:
    made = Member(LLMConfig(name="m", model="m", base_url="http://m.test/v1"), 0, frozenset(), None)
    for number in range(1000):
        made.records(False, f"operation {number}")
    assert len(made._operations) == OPERATIONS
