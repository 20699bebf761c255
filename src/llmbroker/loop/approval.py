"""Calls that wait for somebody: for a yes, or for a result from elsewhere; and the run that waits, as a value.

A decision is bound to one call by a hash over its id, its name and its arguments: it survives a restart and fits no other call.
Decisions come from the program alone (``answers=``), never out of a history. When a run goes on, its open calls are read and
checked again like new ones; only then does a decision count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from llmbroker.budget import Spent
from llmbroker.errors import InvalidRequestError
from llmbroker.messages import shown
from llmbroker.tools import canonical

JSON: TypeAlias = dict[str, Any]
Verdict: TypeAlias = Literal["approved", "rejected", "result"]


def fingerprint(identity: str, name: str, arguments: JSON) -> str:
    """Return the hash that binds a decision to a call."""
    return hashlib.sha256(canonical([identity, name, arguments]).encode("utf-8", "replace")).hexdigest()


class Decision(msgspec.Struct, frozen=True):
    """What was decided about one call. ``text`` is the reason of a rejection, or the result of a tool that ran elsewhere."""

    id: str
    hash: str
    verdict: Verdict
    text: str = ""


class PendingCall(msgspec.Struct, frozen=True):
    """A call that waits. ``kind``: ``approval`` (a yes or no) or ``external`` (its result)."""

    id: str
    name: str
    arguments: JSON
    hash: str
    kind: Literal["approval", "external"] = "approval"

    def approve(self) -> Decision:
        """Let it run."""
        return Decision(self.id, self.hash, "approved")

    def reject(self, reason: str = "") -> Decision:
        """Do not let it run; the model reads the reason."""
        return Decision(self.id, self.hash, "rejected", reason)

    def result(self, text: Any) -> Decision:
        """Give its result: text, or a value that is sent as JSON."""
        return Decision(self.id, self.hash, "result", text if isinstance(text, str) else msgspec.json.encode(text).decode())


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits for decisions; hand it to the loop in place of messages, with ``answers=``, to go on.

    Attributes:
        messages: the conversation; the calls that wait are open in it.
        pending: the calls that wait, all of them.
        step: model calls so far. spent: what was spent of the budget, or None.
        text: "", so that it can be told from an answer like one.
        run_id: of a durable run, else None.
    """

    messages: list[JSON]
    pending: list[PendingCall]
    step: int = 0
    spent: Spent | None = None
    text: str = ""
    run_id: str | None = None

    def to_json(self) -> str:
        """Return it as JSON text, to be kept anywhere."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Paused:
        """Return it again.

        Raises:
            InvalidRequestError: the text holds no paused run.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise InvalidRequestError(f"This is no paused run: {error}.", argument="messages") from None

    def approve_all(self) -> list[Decision]:
        """Return a yes for every call that waits for one."""
        return [call.approve() for call in self.pending if call.kind == "approval"]


class PauseLoop(BaseException):
    """Leaves the flow where calls wait. Not an ``Exception``: it is no fault and reaches nobody."""

    def __init__(self, pending: list[PendingCall]) -> None:
        super().__init__()
        self.pending = pending


class Approvals:
    """The decisions at hand, and who is asked for others.

    Args:
        approve: a function of a ``PendingCall`` that returns True, False, a reason to refuse, a ``Decision``, or None (pause);
            or ``"pause"``; or None: nobody is asked, and calls that need a yes pause the run.
        answers: decisions of earlier.

    Raises:
        InvalidRequestError: something is neither.
    """

    def __init__(self, approve: Any, answers: Sequence[Decision] | None) -> None:
        if approve is not None and approve != "pause" and not callable(approve):
            raise InvalidRequestError(f"approve is a function of a call, or 'pause', not {shown(approve)}.", argument="approve")
        self.ask = approve if callable(approve) else None
        self._given: dict[str, Decision] = {}
        if answers is not None and not isinstance(answers, (list, tuple)):
            raise InvalidRequestError(f"answers is a list of decisions, not {shown(answers)}.", argument="answers")
        for answer in answers or ():
            if not isinstance(answer, Decision):
                raise InvalidRequestError(
                    f"answers are decisions (paused.pending[0].approve()), not {type(answer).__name__}.", argument="answers"
                )
            if answer.id in self._given:
                raise InvalidRequestError(f"Two answers are given for the call {answer.id!r}.", argument="answers")
            self._given[answer.id] = answer

    def check(self, waiting: Mapping[str, str | None], ids: Iterable[str]) -> None:
        """See that the answers belong to this run; what was decided and done before is no mistake.

        Args:
            waiting: the ids of the open calls, with the hash of each that is known.
            ids: those of all calls of the run.

        Raises:
            InvalidRequestError: an answer is about a call that never was in it, or about other arguments of one that waits.
        """
        known = set(ids)
        for name, answer in sorted(self._given.items()):
            if name not in waiting and name not in known:
                fault = "belongs to another run"
            elif waiting.get(name) not in (None, answer.hash):
                fault = "is about another tool or other arguments"
            else:
                continue
            these = ", ".join(map(repr, waiting)) or "none"
            raise InvalidRequestError(
                f"The answer about the call {name!r} {fault}: in this one these wait: {these}.", argument="answers"
            )

    def fit(self, pending: Iterable[PendingCall], has: Callable[[str], Any]) -> None:
        """See that each answer can be followed: it is of its call's kind, and the tool is there.

        Args:
            pending: the calls that wait.
            has: finds the tool of a name among those that were handed in, or None.

        Raises:
            InvalidRequestError: a yes for a call that waits for its result, or the other way round; or its tool is missing.
        """
        for call in pending:
            answer = self.known(call)
            if answer is None or answer.verdict == "rejected":
                continue
            if answer.verdict != ("result" if call.kind == "external" else "approved"):
                wanted = "its result: call.result(value)" if call.kind == "external" else "a yes: call.approve()"
                raise InvalidRequestError(
                    f"The answer about the call {call.id!r} of {call.name} is {answer.verdict!r}, but it waits for {wanted}, "
                    "or call.reject(reason).",
                    argument="answers",
                )
            if has(call.name) is None:
                raise InvalidRequestError(
                    f"The call {call.id!r} is answered, but its tool {call.name} is not there.",
                    argument="tools",
                    hint="Hand in the run's tools again (tools=); they are not kept with it.",
                )

    def known(self, call: PendingCall) -> Decision | None:
        """Return the decision about exactly this call, or None."""
        found = self._given.get(call.id)
        return found if found is not None and found.hash == call.hash else None


def decision_of(said: Any, call: PendingCall) -> Decision | None:
    """Return what a function said about a call as a decision; None: it wants to wait.

    Raises:
        InvalidRequestError: it said something else.
    """
    if said is None:
        return None
    if isinstance(said, bool):
        return call.approve() if said else call.reject()
    if isinstance(said, str):
        return call.reject(said)
    if isinstance(said, Decision):
        return said if (said.id, said.hash) == (call.id, call.hash) else None
    raise InvalidRequestError(
        f"approve returned {type(said).__name__}: it returns True, False, a reason to refuse, or None to wait.",
        argument="approve",
    )
