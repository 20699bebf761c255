"""Who is well enough to be asked: incidents, rests, recovery; and who is to blame for an error.

Pure: time and dice are arguments.

Theory of operation
-------------------
Three kinds of things can be ill, each with a ``Health`` of its own: a *member* of the pool (its server fails), a *key*
(refused, or its quota is spent: all models of the account rest together) and a *lane*, one member with one key (the model is
not there for this key, or its own quota is spent). A lane can be used when all three are well.

An illness is an *incident*, however many attempts meet it. An attempt that began before the incident was known belongs to it:
it can prolong the rest but does not count again, and its success does not end it. The rest is what the provider stated, else
it doubles with each incident in a row, within bounds, with jitter. Afterwards ``room`` says how many attempts may be under
way at once: 1 at first (the probe), doubled by each success, until the illness is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from llmbroker.errors import (
    AuthError,
    BadRequestError,
    BillingError,
    ConnectionFailedError,
    ContextWindowError,
    InvalidProviderResponseError,
    LLMBrokerError,
    LLMTimeoutError,
    MalformedCallError,
    ModelNotFoundError,
    PermissionDeniedError,
    ProviderError,
    RateLimitError,
    ServerError,
    StreamInterruptedError,
    UnsupportedFeatureError,
)
from llmbroker.exchange import Reply

Dice: TypeAlias = Callable[[], float]
"""Returns a number from 0 up to 1."""
Blame: TypeAlias = Literal["caller", "key", "quota", "model", "provider", "network", "ours"]
Where: TypeAlias = Literal["member", "key", "lane"]
Status: TypeAlias = Literal["ok", "rate_limited", "unavailable", "error", "timeout", "cancelled", "superseded"]

SILENCE = 2.0
"""Seconds beyond twice the time of the failures, for which an attempt must last to count as let in."""
HEALED = 8
"""Attempts at once, from which on a recovering thing counts as well."""
HOUR = 3600.0
DAY = 86400.0


class Illness(msgspec.Struct, frozen=True):
    """A kind of incident.

    Attributes:
        word: its name in ``snapshot()``.
        rest: seconds of the first rest, where the provider states none.
        longest: seconds that a rest grows to.
        queue: whether a call waits for its end (a spent quota: yes; a refused key: no).
        beside: whether the probe runs beside a healthy lane, because it may take long to fail.
    """

    word: str
    rest: float
    longest: float
    queue: bool = True
    beside: bool = True


RATE_LIMITED = Illness("rate_limited", 4.0, 120.0, beside=False)
UNAVAILABLE = Illness("unavailable", 2.0, 15.0)
BROKEN = Illness("error", 2.0, 60.0)
UNREACHABLE = Illness("unreachable", 1.0, 15.0)
HANGING = Illness("timeout", 5.0, 30.0)
EMPTY = Illness("empty", 2.0, 60.0, beside=False)
KEY_REFUSED = Illness("key_refused", 300.0, HOUR, queue=False)
OUT_OF_CREDIT = Illness("out_of_credit", 900.0, 6 * HOUR, queue=False)
NOT_FOUND = Illness("not_found", HOUR, DAY, queue=False)
DENIED = Illness("denied", 30.0, HOUR, queue=False)


class Health:
    """How one thing fares. ``room`` None: it is well."""

    __slots__ = ("detail", "epoch", "illness", "incidents", "room", "since", "stated", "took", "trial_at", "trials", "until")

    def __init__(self) -> None:
        self.room: int | None = None
        self.until = 0.0
        self.since = float("-inf")
        self.incidents = 0
        self.took = 0.0
        """Seconds after which the last incident's failures came, at most."""
        self.stated = False
        """Whether the provider itself said until when."""
        self.trials = 0
        self.trial_at = 0.0
        """When the last attempt since the rest began."""
        self.epoch = 0
        self.illness: Illness | None = None
        self.detail = ""

    def free(self, now: float) -> bool:
        """Whether one more attempt may begin."""
        room = self.room
        return room is None or (now >= self.until and self.trials < room)

    def fail(self, illness: Illness, now: float, started: float, stated: float | None, dice: Dice, detail: str = "") -> None:
        """Take a failure of an attempt that began at ``started``.

        A stated wait is taken as said; only where it was obeyed and refused again, three times in a row, it grows.
        """
        if started > self.since or self.room is None:
            self.incidents += 1
            self.since = now
            self.epoch += 1
            self.trials = 0
            self.took = 0.0
        self.took = max(self.took, now - started)
        grown = min(illness.rest * 2.0 ** min(self.incidents - 1, 30), illness.longest) * (0.9 + 0.2 * dice())
        if stated is None:
            rest = grown
        elif self.incidents > 3:
            rest = max(stated, min(grown / 8.0, illness.longest))
        else:
            rest = stated
        self.room = 1
        if now + rest >= self.until or self.illness is None:
            self.illness, self.detail, self.stated = illness, detail, stated is not None
        self.until = max(self.until, now + rest)

    def rest(self, illness: Illness, now: float, started: float, until: float, detail: str = "") -> None:
        """Rest until a moment that is known: a quota opens then. What an attempt from before the incident says, counts too."""
        if started > self.since or self.room is None:
            self.incidents += 1
            self.since = now
            self.epoch += 1
            self.trials = 0
        self.room = 1
        if self.illness is illness or self.illness is None or until >= self.until:
            self.illness, self.detail, self.until, self.stated = illness, detail, until, False

    def adopt(self, illness: Illness, now: float, until: float, incidents: int, detail: str = "") -> None:
        """Take over what another process found out."""
        self.incidents = max(self.incidents, incidents)
        self.since = now
        self.epoch += 1
        self.trials = 0
        self.room = 1
        self.illness, self.detail, self.until, self.stated = illness, detail, until, True

    def succeed(self, started: float) -> int:
        """Take the success of an attempt that began at ``started``; return how many more attempts may begin now."""
        room = self.room
        if room is None or started < self.until:
            return 0
        if room * 2 > HEALED:
            self.heal()
            return HEALED
        self.room = room * 2
        self.incidents //= 2
        return room

    def passes_at(self) -> float | None:
        """Return when the attempt that tries it out will have lasted longer than its failures did; None: only its end tells.

        A provider that is overloaded, or a quota that is spent, says so quickly; one that hangs says nothing.
        """
        if self.room is None or not self.trials or self.trial_at < self.until or self.illness is HANGING:
            return None
        return self.trial_at + 2.0 * self.took + SILENCE

    def outlived(self) -> None:
        """The attempt that tries it out has lasted longer than its failures did: let in as many again."""
        assert self.room is not None
        self.room *= 2
        self.trial_at = self.trial_at + 2.0 * self.took + SILENCE
        if self.room > HEALED:
            self.heal()

    def settle(self, started: float) -> int:
        """An attempt since the rest ended neither failed nor answered: it had its chance, the probe is over."""
        if self.room == 1 and started >= self.until:
            self.room = 2
            return 1
        return 0

    def heal(self) -> None:
        """Forget the illness."""
        self.room = None
        self.until = 0.0
        self.incidents = 0
        self.trials = 0
        self.epoch += 1
        self.illness = None
        self.detail = ""


# -- blame ---------------------------------------------------------------------------------------------------------------


class Verdict(msgspec.Struct, frozen=True):
    """What an error means.

    Attributes:
        blame: who or what is at fault.
        status: the journal's word for the attempt.
        illness: what befell ``where``, or None: nobody is ill.
        where: the member, the key or the lane.
        stated: seconds that the provider asked to wait, within bounds.
        lacks: the feature (or ``context``) that this model does not have.
        strike: no illness yet, but one when it goes on.
    """

    blame: Blame
    status: Status
    illness: Illness | None = None
    where: Where = "member"
    stated: float | None = None
    lacks: str | None = None
    strike: bool = False


class EmptyAnswerError(InvalidProviderResponseError):
    """A whole answer that says nothing. ``reply`` is that answer, for the case that nobody has a better one."""

    def __init__(self, message: str, *, reply: Reply, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.reply = reply


def is_empty(reply: Reply) -> bool:
    """Whether a whole reply says nothing at all, without a reason that explains it, or ended in an error of the model."""
    if reply.finish_reason == "error":
        return True
    if reply.tool_calls or reply.refusal or reply.finish_reason not in ("stop", "unknown", "tool_calls"):
        return False
    return not reply.text or not reply.text.strip()


def judge(error: BaseException, *, model: str, granted: float, normal: float) -> Verdict:
    """Say who is to blame for an error.

    Args:
        error: what came out of the attempt.
        model: the provider's name of the model.
        granted: seconds that the attempt could have taken.
        normal: seconds that this model may need; a shorter attempt says nothing against it.
    """
    if isinstance(error, BadRequestError):
        return _bad_request(error)
    if isinstance(error, LLMTimeoutError):
        if granted < normal:
            return Verdict("ours", "timeout")
        return Verdict("provider", "timeout", HANGING)
    if isinstance(error, ConnectionFailedError):
        return Verdict("network", "unavailable", UNREACHABLE)
    if isinstance(error, StreamInterruptedError):
        cause = error.__cause__
        if isinstance(cause, LLMBrokerError) and not isinstance(cause, StreamInterruptedError):
            return judge(cause, model=model, granted=granted, normal=normal)
        return Verdict("provider", "error", BROKEN)
    if isinstance(error, EmptyAnswerError):
        return Verdict("provider", "error", EMPTY)
    if isinstance(error, InvalidProviderResponseError):
        return Verdict("provider", "error", BROKEN)
    if isinstance(error, ProviderError):
        return _refused(error, model)
    return Verdict("caller", "error")


def _bad_request(error: BadRequestError) -> Verdict:
    if isinstance(error, ContextWindowError):
        return Verdict("caller", "error", lacks="context")
    if isinstance(error, UnsupportedFeatureError):
        return Verdict("caller", "error", lacks=error.feature or error.param or "feature")
    if isinstance(error, MalformedCallError):
        return Verdict("model", "error", strike=True)
    return Verdict("caller", "error")


def _refused(error: ProviderError, model: str) -> Verdict:
    if isinstance(error, RateLimitError):
        longest = DAY if error.limit == "day" else HOUR
        where: Where = "lane" if _of_model(error, model) else "key"
        return Verdict("quota", "rate_limited", RATE_LIMITED, where, _bounded(error.retry_after, longest))
    if isinstance(error, AuthError):
        return Verdict("key", "error", KEY_REFUSED, "key")
    if isinstance(error, BillingError):
        return Verdict("model", "error", OUT_OF_CREDIT, "lane", _bounded(error.retry_after, DAY))
    if isinstance(error, ModelNotFoundError):
        return Verdict("model", "error", NOT_FOUND, "lane")
    if isinstance(error, PermissionDeniedError):
        return Verdict("model", "error", DENIED, "lane", strike=True)
    if isinstance(error, ServerError):
        word = UNAVAILABLE if error.status in (503, 529) else BROKEN
        status: Status = "unavailable" if error.status in (503, 529) else "error"
        return Verdict("provider", status, word, stated=_bounded(error.retry_after, HOUR))
    return Verdict("provider", "error", BROKEN)


def _bounded(seconds: float | None, longest: float) -> float | None:
    if seconds is None or not seconds >= 0:
        return None
    return min(max(seconds, 0.05), longest)


def _of_model(error: RateLimitError, model: str) -> bool:
    """Whether a refusal concerns this model's own quota; a refusal that names no model concerns the key."""
    text = f"{error.code or ''} {error.detail or ''}".lower()
    if "upstream" in text or "permodel" in text or "per model" in text or "per-model" in text:
        return True
    return model.lower().rsplit("/", 1)[-1] in text
