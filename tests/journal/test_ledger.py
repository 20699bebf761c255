"""Accounts of limits: the book in memory and the tables of every store keep the same rules, also for many hands at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from llmbroker.allowances import NOTHING, UNLIMITED, Account, Book, Demand, Hold, Reserved, Settled, Triple
from llmbroker.catalog import Limit
from llmbroker.journal import Store, new_id, open_store
from llmbroker.journal.ledger import KEPT, Ledger, read_limits, write_limits

from .conftest import STORES
from .server import new_database


class InMemory:
    """The book with the methods of a store's ledger."""

    def __init__(self) -> None:
        self.book = Book()

    def reserve(self, hold: Hold, now: int) -> Reserved:
        return self.book.reserve(hold, now)

    def settle(self, settled: Settled, now: int) -> None:
        self.book.settle(settled)

    def accounts(self, names: list[str], now: int) -> list[Account]:
        return [account for account in self.book.accounts(now) if account.name in names]


@pytest.fixture(params=["memory", *sorted(STORES)])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Every place where limits are counted."""
    if request.param == "memory":
        yield InMemory()
        return
    store = STORES[request.param](tmp_path)
    yield Ledger(store)
    store.close()


def demand(name: str = "l", wants: Triple = (1, 10, 0), most: Triple = (3, 100, UNLIMITED), **facts: Any) -> Demand:
    """What an attempt asks of one account."""
    return Demand(
        name, facts.get("subject", ""), facts.get("start", 0), facts.get("ends"), wants, facts.get("least", wants), most
    )


def hold(*demands: Demand, expires: int = 1000, name: str | None = None) -> Hold:
    """A hold under a new name."""
    return Hold(name or new_id(), demands, expires)


def amounts(ledger: Any, name: str = "l", now: int = 0) -> tuple[Triple, Triple]:
    """What is spent and held of a limit."""
    (account,) = ledger.accounts([name], now)
    return account.spent, account.held


def test_what_fits_is_held_and_settled_with_what_was_used(ledger: Any) -> None:
    one = hold(demand())
    assert ledger.reserve(one, 0).refused is None
    assert amounts(ledger) == (NOTHING, (1, 10, 0))
    ledger.settle(Settled(one, ((1, 7, 5),)), 0)
    assert amounts(ledger) == ((1, 7, 5), NOTHING)


def test_what_does_not_fit_is_refused_with_its_account_and_nothing_is_held(ledger: Any) -> None:
    first = hold(demand(wants=(1, 95, 0)))
    ledger.reserve(first, 0)
    refused = ledger.reserve(hold(demand("a"), demand()), 0)
    assert (refused.refused, refused.accounts[1].held) == (1, (1, 95, 0))
    assert refused.accounts[0].held == NOTHING
    assert amounts(ledger) == (NOTHING, (1, 95, 0))
    assert all(account.held == NOTHING for account in ledger.accounts(["a"], 0))


def test_what_alone_is_too_much_is_refused_by_an_account_of_its_own(ledger: Any) -> None:
    assert ledger.reserve(hold(demand(wants=(1, 101, 0))), 0).refused == 0
    assert ledger.accounts(["l"], 0) == []


def test_a_measure_of_nothing_is_not_looked_at(ledger: Any) -> None:
    one = hold(demand(wants=(1, 100, 0)))
    ledger.reserve(one, 0)
    ledger.settle(Settled(one, ((1, 150, 0),)), 0)
    assert ledger.reserve(hold(demand(wants=(1, 1, 0))), 0).refused == 0
    assert ledger.reserve(hold(demand(wants=(1, 0, 0))), 0).refused is None


def test_a_guess_is_let_in_alone_while_something_is_left(ledger: Any) -> None:
    guess = demand(wants=(0, 500, 0), least=(0, 4, 0))
    one = hold(guess)
    assert ledger.reserve(one, 0).refused is None
    assert ledger.reserve(hold(guess), 0).refused == 0
    ledger.settle(Settled(one, ((0, 90, 0),)), 0)
    two = hold(guess)
    assert ledger.reserve(two, 0).refused is None
    ledger.settle(Settled(two, ((0, 90, 0),)), 0)
    assert ledger.reserve(hold(guess), 0).refused == 0


def test_a_hold_is_settled_once_however_often_it_is_told(ledger: Any) -> None:
    one = hold(demand())
    ledger.reserve(one, 0)
    ledger.settle(Settled(one, ((1, 7, 0),)), 0)
    if not isinstance(ledger, InMemory):
        ledger.settle(Settled(one, ((1, 7, 0),)), 0)
    assert amounts(ledger) == ((1, 7, 0), NOTHING)


def test_a_hold_that_comes_after_its_end_holds_nothing(ledger: Any) -> None:
    """Its caller left while the store was at work with it: the end may be told before."""
    if isinstance(ledger, InMemory):
        pytest.skip("in memory nothing comes late")
    one = hold(demand())
    ledger.settle(Settled(one, (NOTHING,)), 0)
    ledger.reserve(one, 0)
    ledger.settle(Settled(one, (NOTHING,)), 0)
    assert all(account.held == NOTHING for account in ledger.accounts(["l"], 0))


def test_a_hold_is_made_once_however_often_it_is_asked_for(ledger: Any) -> None:
    if isinstance(ledger, InMemory):
        pytest.skip("memory has no connection that breaks")
    one = hold(demand())
    assert ledger.reserve(one, 0) == ledger.reserve(one, 0)
    assert amounts(ledger) == (NOTHING, (1, 10, 0))


def test_a_hold_of_the_dead_is_given_back_to_who_finds_no_room(ledger: Any) -> None:
    dead = hold(demand(wants=(3, 100, 0)), expires=50)
    ledger.reserve(dead, 0)
    assert ledger.reserve(hold(demand()), 49).refused == 0
    assert ledger.reserve(hold(demand()), 50).refused is None
    assert amounts(ledger, now=60) == (NOTHING, (1, 10, 0))


def test_a_hold_that_cannot_be_read_stops_nobody(store: Store) -> None:
    ledger = Ledger(store)
    ledger.reserve(hold(demand(wants=(3, 0, 0)), expires=50, name="damaged"), 0)
    store.transact(lambda db: db.execute("UPDATE llmbroker_holds SET value = ?", ('{"not": "a hold"',)))
    ledger.reserve(hold(demand(wants=(0, 5, 0)), expires=50), 0)
    assert ledger.reserve(hold(demand(), expires=900), 60).refused == 0
    assert ledger.reserve(hold(demand(wants=(0, 95, 0)), expires=900), 60).refused is None


def test_one_who_was_given_up_and_lives_is_counted_and_gives_nothing_back_twice(ledger: Any) -> None:
    slow, other = hold(demand(), expires=50), hold(demand(), expires=500)
    ledger.reserve(slow, 0)
    ledger.reserve(other, 0)
    ledger.accounts(["l"], 60)
    for _ in range(1 if isinstance(ledger, InMemory) else 2):
        ledger.settle(Settled(slow, ((1, 7, 0),)), 70)
    assert amounts(ledger, now=70) == ((1, 7, 0), (1, 10, 0))


def test_what_was_counted_elsewhere_is_added_once(ledger: Any) -> None:
    foreign = Settled(hold(demand()), ((1, 7, 0),), 1, foreign=True)
    for _ in range(1 if isinstance(ledger, InMemory) else 3):
        ledger.settle(foreign, 0)
    assert amounts(ledger) == ((1, 7, 0), NOTHING)
    assert ledger.accounts(["l"], 0)[0].unpriced == 1


def test_accounts_are_those_of_the_present_windows(ledger: Any) -> None:
    for start, ends in ((0, 100), (100, 200), (0, None)):
        ledger.reserve(hold(demand("l" if ends else "m", start=start, ends=ends)), start)
    assert [(account.name, account.start) for account in ledger.accounts(["l", "m"], 150)] == [("l", 100), ("m", 0)]
    assert ledger.accounts([], 150) == []


def test_subjects_are_kept_apart_whatever_they_hold(ledger: Any) -> None:
    subjects = [
        '["bob",null,null]',
        '["b%",null,null]',
        '["b_b",null,null]',
        '["\\u0000",null,null]',
        '["日本",null,null]',
        "?",
    ]
    for subject in subjects:
        ledger.reserve(hold(demand(subject=subject, most=(1, 10, 0))), 0)
    assert {account.subject for account in ledger.accounts(["l"], 0)} == set(subjects)
    if not isinstance(ledger, InMemory):
        assert [one.subject for one in ledger.accounts(["l"], 0, prefix='["b%",')] == ['["b%",null,null]']


def test_largest_amounts_are_counted_exactly(ledger: Any) -> None:
    big = 2**53
    one = hold(demand(wants=(1, big, 10**18), most=(UNLIMITED, UNLIMITED, UNLIMITED)))
    ledger.reserve(one, 0)
    ledger.settle(Settled(one, ((1, big - 1, 10**18 + 1),)), 0)
    assert amounts(ledger) == ((1, big - 1, 10**18 + 1), NOTHING)


def test_ended_windows_are_tidied_away_after_a_while(store: Store) -> None:
    ledger = Ledger(store)
    for start, ends in ((0, 100), (100, None)):
        ledger.reserve(hold(demand(start=start, ends=ends), expires=10), 0)
    ledger.tidy(KEPT)
    assert len(ledger.accounts(["l"], 0)) == 2
    ledger.tidy(KEPT + 200)
    assert [account.start for account in ledger.accounts(["l"], 0)] == [100]


def test_limits_of_a_database_are_replaced_as_a_whole(store: Store) -> None:
    limits = [
        Limit(calls=3, window="day", scope="*"),
        Limit(cost=0.5, key="K", window=90, unknown_price={"input": 1.0}, strict=True),
        Limit(tokens=5, operation="x", unknown_price=0.25, name="mine"),
    ]
    assert read_limits(store) == []
    write_limits(store, limits)
    assert read_limits(store) == limits
    write_limits(store, limits[1:])
    assert read_limits(store) == limits[1:]


# -- against a naive model -----------------------------------------------------------------------------------------------


class Naive:
    """Every hold that was ever made; sums are added up anew each time."""

    def __init__(self) -> None:
        self.holds: dict[str, list[Any]] = {}
        self.late = 0
        """Attempts that ended after they had been given up."""

    def sums(self, key: tuple[str, str, int]) -> tuple[list[int], list[int]]:
        spent, held = [0, 0, 0], [0, 0, 0]
        for made, state, used in self.holds.values():
            for at, one in enumerate(made.demands):
                for place in range(3) if one.key == key else ():
                    held[place] += one.wants[place] if state == "held" else 0
                    spent[place] += used[at][place] if used is not None else 0
        return spent, held

    def fits(self, asked: Hold) -> bool:
        for one in asked.demands:
            spent, held = self.sums(one.key)
            for place in range(3):
                wants, most = one.wants[place], one.most[place]
                together = spent[place] + held[place] + wants <= most
                alone = held[place] == 0 and spent[place] + one.least[place] <= most
                if wants and not together and not alone:
                    return False
        return True

    def reserve(self, asked: Hold, now: int) -> bool:
        if not self.fits(asked):
            self.lapse(now)
            if not self.fits(asked):
                return False
        self.holds[asked.id] = [asked, "held", None]
        return True

    def lapse(self, now: int) -> None:
        for entry in self.holds.values():
            if entry[1] == "held" and entry[0].expires <= now:
                entry[1] = "lapsed"

    def settle(self, name: str, used: tuple[Triple, ...]) -> None:
        self.late += self.holds[name][1] == "lapsed"
        self.holds[name][1:] = ["settled", used]


NAMES = ("calls", "both", "money")
MOST: dict[str, Triple] = {"calls": (4, UNLIMITED, UNLIMITED), "both": (6, 60, UNLIMITED), "money": (UNLIMITED, UNLIMITED, 50)}
AMOUNT = st.integers(0, 40)


class Ledgers(RuleBasedStateMachine):
    """Random attempts of random sizes, deaths included: each place of counting says what the naive model says."""

    def make(self) -> list[Any]:
        return [InMemory(), Ledger(open_store(":memory:"))]

    def __init__(self) -> None:
        super().__init__()
        self.run = new_id()
        self.places = self.make()
        self.naive = Naive()
        self.now = 0
        self.open: list[Hold] = []

    def teardown(self) -> None:
        for place in self.places:
            if isinstance(place, Ledger):
                place.store.close()

    @rule(seconds=st.integers(0, 30))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(
        names=st.sets(st.sampled_from(NAMES), min_size=1),
        tokens=AMOUNT,
        cost=AMOUNT,
        guess=AMOUNT,
        subject=st.sampled_from(["", "bob"]),
        lease=st.integers(1, 60),
    )
    def reserve(self, names: set[str], tokens: int, cost: int, guess: int, subject: str, lease: int) -> None:
        made = []
        for name in sorted(names):
            full = (1, tokens + guess, cost + guess)
            wants = tuple(0 if most == UNLIMITED else amount for amount, most in zip(full, MOST[name], strict=True))
            sure = tuple(0 if most == UNLIMITED else amount for amount, most in zip((1, tokens, cost), MOST[name], strict=True))
            window = self.now - self.now % 40
            made.append(Demand(f"{self.run} {name}", subject, window, window + 40, wants, sure, MOST[name]))
        asked = Hold(new_id(), tuple(made), self.now + lease)
        verdicts = {place.reserve(asked, self.now).refused is None for place in self.places}
        assert verdicts == {self.naive.reserve(asked, self.now)}
        if True in verdicts:
            self.open.append(asked)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), tokens=AMOUNT, cost=AMOUNT, worked=st.booleans())
    def settle(self, data: Any, tokens: int, cost: int, worked: bool) -> None:
        ended = data.draw(st.sampled_from(self.open))
        self.open.remove(ended)
        used = tuple(
            tuple(
                0 if most == UNLIMITED or not worked else amount
                for amount, most in zip((1, tokens, cost), one.most, strict=True)
            )
            for one in ended.demands
        )
        for place in self.places:
            place.settle(Settled(ended, used), self.now)  # type: ignore[arg-type]
        self.naive.settle(ended.id, used)  # type: ignore[arg-type]

    @rule()
    def look(self) -> None:
        self.naive.lapse(self.now)
        names = [f"{self.run} {name}" for name in NAMES]
        for place in self.places:
            for account in place.accounts(names, self.now):
                spent, held = self.naive.sums(account.key)
                assert (list(account.spent), list(account.held)) == (spent, held)

    @invariant()
    def calls_are_never_more_than_permitted(self) -> None:
        for entry in self.naive.holds.values():
            for one in entry[0].demands:
                spent, held = self.naive.sums(one.key)
                assert spent[0] + held[0] <= one.most[0] + self.naive.late


class OnServer(Ledgers):
    """The same on a real server."""

    store: Store

    def make(self) -> list[Any]:
        return [Ledger(type(self).store)]

    def teardown(self) -> None:
        pass


TestLedgers = Ledgers.TestCase
TestLedgers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_server_says_what_the_naive_model_says() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    OnServer.store = open_store(new_database())
    few = settings(max_examples=8, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(OnServer, settings=few)
    OnServer.store.close()


# -- many hands ----------------------------------------------------------------------------------------------------------


def test_threads_hold_exactly_what_is_permitted(store: Store) -> None:
    ledger = Ledger(store)
    passed: list[Hold] = []

    def work() -> None:
        for _ in range(20):
            one = hold(demand(wants=(1, 0, 0), most=(50, UNLIMITED, UNLIMITED)), demand("m", wants=(1, 0, 0), most=(55, 9, 9)))
            if ledger.reserve(one, 0).refused is None:
                passed.append(one)
                ledger.settle(Settled(one, ((1, 0, 0), (1, 0, 0))), 0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == 50
    assert amounts(ledger) == amounts(ledger, "m") == ((50, 0, 0), NOTHING)
