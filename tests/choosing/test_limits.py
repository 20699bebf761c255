"""Slots, the queue, credit for second lanes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmbroker.broker.desk import Desk
from llmbroker.broker.replies import Ask
from llmbroker.exchange import make_request
from llmbroker.limits import Cap, Credit, Queue, Waiter


def test_a_cap_is_learnt_from_a_refusal_and_grows_back() -> None:
    cap = Cap()
    assert cap.free(1000)
    cap.refused(3)
    assert cap.free(2)
    assert not cap.free(3)
    for _ in range(100_000):
        cap.answered()
    assert cap.free(1000)


def test_a_cap_is_never_below_one() -> None:
    cap = Cap()
    for _ in range(5):
        cap.refused(0)
    assert cap.free(0)


def test_a_refusal_without_words_among_many_is_suspected_of_being_one_too_many_until_the_contrary_is_seen() -> None:
    cap = Cap()
    assert not cap.suspects(3, 0.0, 1.0), "three others are no crowd"
    for beside in (6, 5, 4):
        assert cap.suspects(beside, 0.0, 1.0)
        cap.refused(beside)
    assert [cap.free(running) for running in (3, 4)] == [True, False]
    assert cap.suspects(4, 2.0, 3.0), "as many as before: it is that"
    cap.refused(4)
    assert not cap.suspects(2, 4.0, 5.0), "fewer than were let in: it is something else"
    assert cap.free(100)
    assert not cap.suspects(9, 6.0, 7.0), "and that is believed"


def test_credit_is_a_share_of_the_calls() -> None:
    credit = Credit(share=0.2, most=10.0)
    spent = sum(1 for _ in range(1000) if (credit.earn(), credit.spend())[1])
    assert 190 <= spent <= 212


def test_second_attempts_beside_slow_ones_are_paid_for_by_calls() -> None:
    desk = Desk(lambda: 0.5)
    spent = 0
    while desk.may_hedge():
        spent += 1
        assert spent <= 10
    need = make_request("hi")
    for _ in range(5):
        desk.enter(
            Ask(
                need, params=None, scope=None, operation=None, trace_id=None, began=0.0, deadline=9.0, queue_until=9.0,
                fastest_of=1,
            )
        )  # fmt: skip
    assert [desk.may_hedge(), desk.may_hedge()] == [True, False]


def test_what_was_not_used_is_given_back() -> None:
    credit = Credit(share=0.0, most=1.0)
    assert credit.spend()
    assert not credit.spend()
    credit.refund()
    assert credit.spend()


class Line(RuleBasedStateMachine):
    """The queue against a plain list."""

    @initialize()
    def begin(self) -> None:
        self.queue = Queue()
        self.line: list[Waiter] = []

    @rule(wants=st.frozensets(st.sampled_from("abc")), asleep=st.booleans())
    def join(self, wants: frozenset[str], asleep: bool) -> None:
        waiter = Waiter(lambda: None)
        waiter.wants, waiter.asleep = wants, asleep
        self.queue.add(waiter)
        self.queue.add(waiter)
        self.line.append(waiter)

    @precondition(lambda self: self.line)
    @rule(index=st.integers(0, 20), offered=st.booleans())
    def change(self, index: int, offered: bool) -> None:
        waiter = self.line[index % len(self.line)]
        if offered:
            waiter.offer = object()
        else:
            self.line.remove(waiter)
            self.queue.remove(waiter)
            self.queue.remove(waiter)

    @rule(name=st.sampled_from("abc"))
    def ask(self, name: str) -> None:
        naive = next((w for w in self.line if w.asleep and w.offer is None and name in w.wants), None)
        assert self.queue.next_for(name) is naive

    @invariant()
    def same_length(self) -> None:
        assert len(self.queue) == len(self.line)


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=40, deadline=None)
