"""The members of a pool, their keys, and what a call needs of them. Pure: no clock, no sockets, no keys shown.

A *member* is one entry of the model list. A *key* is one credential at one provider, shared by all members that use it. A
*lane* is a member with a key: what an attempt runs on. A scope with a key of its own has lanes of its own on the same
members.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from llmbroker.catalog import LLMConfig
from llmbroker.crowding import Crowding
from llmbroker.exchange import Request
from llmbroker.health import HEALED, HOUR, RATE_LIMITED, Health, Illness
from llmbroker.learning import Latency
from llmbroker.limits import Cap
from llmbroker.providers.base import Deployment
from llmbroker.providers.meters import Kind, meters
from llmbroker.quotas import Quota

FEW = 5
"""Attempts of an operation from which on it may have a record of its own."""
APART = 2.0
"""By which factor their usual time must differ from that of all attempts."""
TINY = 0.001
OPERATIONS = 64
"""Operations of a model whose records are kept."""
UNKNOWN_NORMAL = 60.0
"""Seconds that a model of which nothing is known may need."""


class Key:
    """One credential at one provider, with what all its models share."""

    __slots__ = ("account", "cap", "crowding", "health", "kept", "mark", "members", "quota", "refs", "running", "source")

    def __init__(self, source: str) -> None:
        self.source = source
        """Where it was found, never what it is."""
        self.mark = ""
        """What it is called where other processes of the same store read it: a hash."""
        self.account = ""
        """What limits know its value by, at whichever provider: a hash; "" where there is none."""
        self.refs: set[str] = set()
        """The names under which its value was found."""
        self.members: list[Member] = []
        self.health = Health()
        self.quota = Quota()
        self.cap = Cap()
        self.crowding = Crowding()
        self.running = 0
        self.kept = 0
        """How many slots more are kept for calls that were woken and have not looked yet."""

    @property
    def bound(self) -> int | None:
        """How many attempts it was found to bear or to serve at once; None: no bound was met."""
        limits = [limit for limit in (self.cap.limit, self.crowding.limit) if limit is not None]
        return int(min(limits)) if limits else None

    def free(self, now: float) -> bool:
        """Whether one more attempt may begin beside those that run and those for which a slot is kept."""
        taken = self.running + self.kept
        return self.cap.free(taken) and self.crowding.free(taken, now)


class Member:
    """One model of the pool."""

    __slots__ = (
        "_operations",
        "answered_at",
        "config",
        "disabled",
        "first",
        "health",
        "index",
        "kept",
        "lacks",
        "latency",
        "lost",
        "name",
        "running",
        "window",
    )

    def __init__(self, config: LLMConfig, index: int, lacks: frozenset[str], window: int | None) -> None:
        self.config = config
        self.name = config.name
        self.index = index
        self.lacks = lacks
        """Features that it is known not to have."""
        self.window = window
        """Tokens of its context, where the catalog knows."""
        self.health = Health()
        self.latency = Latency()
        self.first = Latency()
        self._operations: OrderedDict[str, tuple[Latency, Latency]] = OrderedDict()
        self.running = 0
        self.kept = 0
        """How many of these are slots that are kept for calls that were woken and have not looked yet."""
        self.disabled = False
        self.lost = 0
        """Races in a row that it lost after more than its normal time."""
        self.answered_at = float("-inf")
        """When it answered last."""

    def record(self, stream: bool, operation: str | None) -> Latency:
        """Return how long its answers (their first pieces, of streams) take.

        An operation whose answers plainly take another time has a record of its own; for others all answers tell more.
        """
        general = self.first if stream else self.latency
        if operation is not None and (own := self._operations.get(operation)) is not None:
            found = own[0] if stream else own[1]
            if found.runs >= FEW and not 1.0 / APART <= (found.usual() + TINY) / (general.usual() + TINY) <= APART:
                return found
        return general

    def new_to(self, stream: bool, operation: str | None) -> bool:
        """Whether little is known yet of how long its answers to an operation take."""
        if operation is None:
            return False
        own = self._operations.get(operation)
        return own is None or (own[0] if stream else own[1]).runs < FEW

    def records(self, stream: bool, operation: str | None) -> tuple[Latency, ...]:
        """Return all records that an attempt teaches."""
        general = self.first if stream else self.latency
        if operation is None:
            return (general,)
        own = self._operations.get(operation)
        if own is None:
            own = self._operations[operation] = (Latency(), Latency())
            if len(self._operations) > OPERATIONS:
                self._operations.popitem(last=False)
        else:
            self._operations.move_to_end(operation)
        return general, own[0] if stream else own[1]

    def all_records(self) -> list[Latency]:
        """Return all records of how long its answers take."""
        return [self.latency, self.first, *(record for both in self._operations.values() for record in both)]

    def normal(self, stream: bool, operation: str | None = None) -> float:
        """Return the seconds that an answer (its first piece, of a stream) may take before the model is thought to hang."""
        record = self.record(stream, operation)
        if len(record) < 3:
            return UNKNOWN_NORMAL
        slow = record.quantile(0.95)
        return max(2.0 * slow, slow + 2.0)


class Lane:
    """A member with a key."""

    __slots__ = ("deployment", "health", "key", "lacks", "member", "quota", "strikes", "too_long")

    def __init__(self, member: Member, key: Key, deployment: Deployment) -> None:
        self.member = member
        self.key = key
        self.deployment = deployment
        self.health = Health()
        self.quota = Quota()
        self.lacks: dict[str, float] = {}
        """Features that it was found to lack, and until when this is believed."""
        self.too_long = 0
        """The smallest request, in characters, that was too long for it; 0: none was."""
        self.strikes = 0

    def free(self, now: float, need: Need | None = None) -> bool:
        """Whether an attempt may begin now."""
        member, key = self.member, self.key
        parallel = member.config.parallel
        if key.health.room is not None or self.health.room is not None or member.health.room is not None:
            self.let_in(now)
            if not (member.health.free(now) and key.health.free(now) and self.health.free(now)):
                return False
        return (
            (parallel is None or member.running < parallel)
            and ((key.cap.limit is None and key.crowding.limit is None) or key.free(now))
            and not (self.metered and self.fits_at(now, need) > now)
        )

    @property
    def room(self) -> int:
        """How many attempts its quota lets in at once when it opens."""
        return min((quota.room for quota in (self.quota, self.key.quota) if quota.known), default=1)

    @property
    def luck(self) -> float:
        """The share of its attempts that its quota lets in."""
        return min(self.quota.luck, self.key.quota.luck)

    @property
    def metered(self) -> bool:
        """Whether anything is known about what its quota holds."""
        return self.quota.known or self.key.quota.known

    @property
    def bounded(self) -> bool:
        """Whether only so many attempts run on it at once."""
        return self.member.config.parallel is not None or self.key.bound is not None

    def fits_at(self, now: float, need: Need | None = None) -> float:
        """Return when its quota has room for a request, as far as is known; ``now`` if at once."""
        size = need.size() if need is not None else 0
        return max(self.quota.opens(now, size), self.key.quota.opens(now, size))

    def why(self, now: float, need: Need | None = None) -> str:
        """Return the provider's statement that holds it back until ``fits_at``, in words; "" if it is only learnt."""
        size = need.size() if need is not None else 0
        return max((self.quota, self.key.quota), key=lambda quota: quota.opens(now, size)).why(now, size)

    def stated(self, now: float) -> list[tuple[str, Kind, float, float | None, float | None]]:
        """Return the windows that its provider states: name, kind, what is left, the limit, when it resets."""
        found: dict[str, tuple[str, Kind, float, float | None, float | None]] = {}
        for gauges in (self.quota.gauges, self.key.quota.gauges):
            if gauges is not None and gauges.sure:
                for one in gauges.shown(now):
                    if one[0] not in found or one[2] < found[one[0]][2]:
                        found[one[0]] = one
        return list(found.values())

    def ill(self, now: float) -> Health | None:
        """Return the illness that ends last, or None if it is well or only busy."""
        worst: Health | None = None
        for health in (self.member.health, self.key.health, self.health):
            if health.room is not None and now < health.until and (worst is None or health.until > worst.until):
                worst = health
        return worst

    def admits_at(self) -> float | None:
        """Return when the attempt that tries out a spent quota will have been let in; None: only its end tells.

        A refusal comes quickly, an answer slowly: an attempt that has outlived the usual refusal was let in.
        """
        times: list[float] = []
        member = self.member.health
        if member.room is not None:
            at = member.passes_at()
            if at is None:
                return None
            times.append(at)
        for health, quota in ((self.key.health, self.key.quota), (self.health, self.quota)):
            if health.room is not None:
                at = health.passes_at()
                if at is None:
                    return None
                times.append(health.trial_at + quota.no_takes if health.illness is RATE_LIMITED else at)
        return max(times) if times else None

    def let_in(self, now: float) -> None:
        """Take notice of attempts that outlived the usual refusal or failure: more may follow."""
        for health, quota in ((self.key.health, self.key.quota), (self.health, self.quota)):
            if health.illness is RATE_LIMITED and health.passes_at() is not None and now >= health.trial_at + quota.no_takes:
                quota.admitted(health.trial_at)
                health.heal()
        for health in (self.member.health, self.key.health, self.health):
            if health.illness is not RATE_LIMITED and (at := health.passes_at()) is not None and now >= at:
                health.outlived()

    def answered(self, started: float) -> int:
        """An attempt was let in and answered; return how many more may begin for that."""
        more = self.member.health.succeed(started)
        for health, quota in ((self.key.health, self.key.quota), (self.health, self.quota)):
            quota.admitted(started)
            if health.illness is RATE_LIMITED and started >= health.until:
                health.heal()
                more = max(more, HEALED)
            else:
                more = max(more, health.succeed(started))
        return more

    def recovering(self) -> Illness | None:
        """Return what it recovers from, if this would be the first attempt after a rest."""
        for health in (self.member.health, self.key.health, self.health):
            if health.room == 1:
                return health.illness
        return None

    @property
    def tried_out(self) -> bool:
        """Whether an attempt that tries it out after a rest is under way."""
        return any(health.room == 1 and health.trials for health in (self.member.health, self.key.health, self.health))

    def cannot(self, need: Need, now: float) -> str | None:
        """Return what the call needs and this lane does not have, or None."""
        for feature in need.features:
            if feature in self.member.lacks:
                return feature
        if self.lacks:
            for feature, until in list(self.lacks.items()):
                if now >= until:
                    del self.lacks[feature]
                elif feature in need.features or feature in need.sent:
                    return feature
        if self.too_long and need.size() >= self.too_long:
            return "context"
        window = self.member.window
        if window is not None and need.size() > window * 6:
            # No tokenizer has more than about 6 characters a token on average: it cannot fit.
            return "context"
        return None

    def learn_lack(self, feature: str, need: Need, now: float) -> None:
        """Remember that it lacks a feature (for an hour), or that a request of this size is too long."""
        if feature == "context":
            size = need.size()
            self.too_long = min(self.too_long or size, size)
        else:
            self.lacks[feature] = now + HOUR


class Lease:
    """A slot of a lane, held by one attempt."""

    __slots__ = ("_trials", "beside", "headers", "lane", "of_key", "of_lane", "operation", "released", "size", "started")

    def __init__(self, lane: Lane, now: float, need: Need | None = None) -> None:
        self.lane = lane
        self.size = need.size() if need is not None and lane.metered else 0
        self.operation = need.operation if need is not None else None
        self.of_lane = lane.quota.send(now, self.size)
        self.of_key = lane.key.quota.send(now, self.size)
        self.started = now
        self.headers: Mapping[str, str] | None = None
        """Of its good reply."""
        self.released = False
        member, key = lane.member, lane.key
        self.beside = key.running
        """How many others were under way with its key when it began."""
        member.running += 1
        key.running += 1
        self._trials: tuple[tuple[Health, int], ...] = ()
        if member.health.room is not None or key.health.room is not None or lane.health.room is not None:
            found = [h for h in (member.health, key.health, lane.health) if h.room is not None]
            for health in found:
                health.trials += 1
                health.trial_at = now
            self._trials = tuple((health, health.epoch) for health in found)

    def hear(self, headers: Mapping[str, str]) -> None:
        """Keep the headers of a good reply."""
        self.headers = headers

    def learn(self, now: float) -> None:
        """Take what the headers of the reply state about the quotas of its lane, and of its key where that has more."""
        headers, self.headers = self.headers, None
        if headers is None:
            return
        stated = meters(headers)
        if stated:
            lane, key = self.lane, self.lane.key
            lane.quota.stated(stated, self.started, now)
            if len(key.members) > 1:
                key.quota.stated(stated, self.started, now, id(lane))

    def release(self) -> bool:
        """Give the slot back; False if that was done before."""
        if self.released:
            return False
        self.released = True
        self.lane.member.running -= 1
        self.lane.key.running -= 1
        for health, epoch in self._trials:
            if health.epoch == epoch:
                health.trials -= 1
        return True


class Need:
    """What a call asks of a model.

    Attributes:
        features: tools, images, audio, files, json_schema, json_object, tool_choice.
        sent: the names of the parameters that are sent.
        stream: whether the answer shall come as it is made.
        operation: the caller's label.
    """

    __slots__ = ("_request", "_size", "features", "operation", "sent", "stream")

    def __init__(self, request: Request, operation: str | None) -> None:
        self._request = request
        self._size = -1
        self.features = needed(request)
        self.sent: Mapping[str, Any] = request.params
        self.stream = request.stream
        self.operation = operation

    def size(self) -> int:
        """Return the length of all texts of the request in characters; counted once, when it is first asked for."""
        if self._size < 0:
            self._size = self._request.history.characters + sum(len(str(tool)) for tool in self._request.tools or ())
        return self._size


_NOTHING: tuple[str, ...] = ()


def needed(request: Request) -> tuple[str, ...]:
    """Return the features that a request needs."""
    form = request.response_format
    media = request.history.media
    if not request.tools and form is None and not media:
        return _NOTHING
    found = sorted(media)
    if request.tools:
        found.append("tools")
    if form is not None and form.get("type") in ("json_schema", "json_object"):
        found.append(form["type"])
    return tuple(found)
