"""Which lanes a caller may use: the members of the pool with the keys that this scope has, its own first.

Keys are looked up anew every second (of secrets that the user hands in: every minute, and at once after a refusal), so a
rotated key is picked up without a restart. Values stay inside ``Secret``.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from llmbroker.catalog import Abilities, LLMConfig
from llmbroker.credentials import KeyRing, Secret
from llmbroker.errors import ConfigurationError, InvalidRequestError, StoreError
from llmbroker.pool import Key, Lane, Member
from llmbroker.providers import table
from llmbroker.providers.base import Deployment, Provider
from llmbroker.router import Entry

log = logging.getLogger("llmbroker.broker")

MOST_LANES = 4096
"""Lanes that are remembered at least."""
SCOPES = 1024
"""Scopes whose lanes are remembered; the one that was not used for longest is forgotten first."""


NOTED = 64
"""Troubles with keys that are told, the newest."""


class Lanes:
    """The pool as each scope sees it.

    Args:
        configs: the model list.
        able: what is known about a model's abilities.
        ring: finds keys.
        fresh: seconds for which a found key is used without another look.
        fallback: a model that needs no key, for the case that no other has one.
    """

    def __init__(
        self,
        configs: Sequence[LLMConfig],
        able: Callable[[LLMConfig], Abilities],
        ring: KeyRing,
        *,
        fresh: float,
        fallback: LLMConfig | None = None,
    ) -> None:
        self._able = able
        self._ring = ring
        self._fresh = fresh
        self._lock = threading.RLock()
        self._keys: dict[tuple[str, Secret | str], Key] = {}
        self._names: dict[Secret, set[str]] = {}
        self._lanes: OrderedDict[tuple[str, Key], Lane] = OrderedDict()
        self._seen: OrderedDict[str | None, tuple[float, tuple[Entry, ...]]] = OrderedDict()
        self.members: list[Member] = []
        self._troubles: OrderedDict[tuple[str, str | None], str] = OrderedDict()
        self._providers: dict[str, Provider] = {}
        self._deployments: dict[str, Deployment] = {}
        self.greet: Callable[[Lane], None] | None = None
        """Called with each lane that is made."""
        self._fallback: Member | None = None
        if fallback is not None:
            self._fallback = self._member(fallback, len(configs))
            self._providers[fallback.name] = provider_of(fallback)
        self.replace(configs)

    def replace(self, configs: Sequence[LLMConfig]) -> None:
        """Take another model list; members that are in both, unchanged, keep what is known about them."""
        old = {member.name: member for member in self.members}
        self.members = []
        for index, config in enumerate(configs):
            known = old.get(config.name)
            if known is not None and known.config == config:
                known.index = index
                self.members.append(known)
                continue
            self.members.append(self._member(config, index))
            self._providers[config.name] = provider_of(config)
        self._seen.clear()

    def _member(self, config: LLMConfig, index: int) -> Member:
        able = self._able(config)
        lacks = {name for name in ("tools", "images", "json_schema") if getattr(able, name) is False}
        return Member(config, index, frozenset(lacks), able.context_tokens)

    @property
    def shared_keys(self) -> bool:
        """Whether a user may use the keys that all share."""
        return self._ring.shared

    def forget(self, scope: str | None) -> None:
        """Look the keys of this scope up anew at its next call."""
        with self._lock:
            self._seen.pop(scope, None)

    def ready(self, scope: str | None, now: float) -> tuple[Entry, ...] | None:
        """Return the pool as this scope sees it, if its keys were looked up lately."""
        known = self._seen.get(scope)
        return known[1] if known is not None and now < known[0] else None

    def last(self, scope: str | None) -> tuple[Entry, ...]:
        """Return the pool as this scope saw it last."""
        known = self._seen.get(scope)
        return known[1] if known is not None else ()

    def forget_running(self) -> None:
        """Count nothing as running: this is the child of a fork."""
        self._lock = threading.RLock()
        for member in self.members:
            member.running = member.kept = 0
            member.health.trials = 0
        for lane in self._lanes.values():
            lane.health.trials = lane.key.health.trials = lane.key.running = lane.key.kept = 0

    def all(self) -> list[Lane]:
        """Return every lane that was made."""
        with self._lock:
            return list(self._lanes.values())

    def deployment(self, name: str) -> Deployment | None:
        """Return how a member is reached, with one of its keys; None where no lane of it was made."""
        return self._deployments.get(name)

    def refs(self, member: Member) -> tuple[str, ...]:
        """Return the names under which a member's key is looked for."""
        return refs_of(member.config, self._providers[member.name])

    async def entries(self, scope: str | None, now: float) -> tuple[Entry, ...]:
        """Return the pool as this scope sees it."""
        known = self.ready(scope, now)
        if known is not None:
            return known
        found = tuple([(member, await self._of(member, scope)) for member in self.members])
        if self._fallback is not None and not any(lanes for _, lanes in found):
            found = (*found, (self._fallback, (self._lane(self._fallback, None),)))
        with self._lock:
            self._seen[scope] = (now + self._fresh, found)
            self._seen.move_to_end(scope)
            while len(self._seen) > SCOPES:
                self._seen.popitem(last=False)
        return found

    async def _of(self, member: Member, scope: str | None) -> tuple[Lane, ...]:
        config = member.config
        provider = self._providers[config.name]
        secrets: dict[Secret, frozenset[str]] = {}
        troubles: list[str] = []
        for ref in refs_of(config, provider):
            for who in self._ring.scopes(scope):
                try:
                    secret, trouble = await self._ring.look(ref, who)
                except (ConfigurationError, StoreError) as error:
                    # A place of keys that fails costs this member its key, not the call its answer.
                    troubles.append(str(error))
                    if who is not None:
                        break  # whether this user has an own key is not known: the shared one must not pay for it
                    continue
                if trouble is not None:
                    troubles.append(str(trouble))
                if secret is not None:
                    secrets[secret] = secrets.get(secret, frozenset()) | {ref}
        self._note(member.name, scope, " ".join(dict.fromkeys(troubles)), found=bool(secrets))
        if not secrets:
            if needs_key(config, provider):
                return ()
            return (self._lane(member, None),)
        return tuple(self._lane(member, secret, refs) for secret, refs in secrets.items())

    @property
    def troubles(self) -> dict[str, str]:
        """Return what is wrong with places of keys, each once, by itself."""
        return {text: text for text in self._troubles.values()}

    def _note(self, name: str, scope: str | None, trouble: str, *, found: bool) -> None:
        """Note, and log once, what is wrong with the places of a member's key."""
        if not trouble:
            self._troubles.pop((name, scope), None)
        elif self._troubles.get((name, scope)) != trouble:
            self._troubles[name, scope] = trouble
            while len(self._troubles) > NOTED:
                self._troubles.popitem(last=False)
            log.warning("%s goes %s: %s", name, "with the key of another place" if found else "without its key", trouble)

    def outside(self, config: LLMConfig, deployment: Deployment, refs: Iterable[str]) -> Lane:
        """Return a lane of a model that is no member, on the same key as members that use it."""
        secret = deployment.key
        with self._lock:
            key = self._keys.get((_host(config), secret)) if secret is not None else None
            if key is None:
                key = self._key(config, secret)
            if secret is not None:
                key.refs |= {ref for ref in refs if secret.source.endswith(ref)} or set(refs)
            return Lane(self._member(config, len(self.members)), key, deployment)

    def _lane(self, member: Member, secret: Secret | None, refs: frozenset[str] = frozenset()) -> Lane:
        with self._lock:
            lane = self._made(member, secret)
            lane.key.refs |= refs
            return lane

    def _key(self, config: LLMConfig, secret: Secret | None) -> Key:
        key = Key(secret.source if secret is not None else "no key")
        named = f"{_host(config)}\n{secret.reveal() if secret is not None else config.name}"
        key.mark = _hash(named)
        if secret is not None:
            if len(self._names) > MOST_LANES:
                self._names = {one: key.refs for (_, one), key in self._keys.items() if isinstance(one, Secret)}
            key.account = _hash(f"limits\n{secret.reveal()}")
            key.refs = self._names.setdefault(secret, set())
        return key

    def _made(self, member: Member, secret: Secret | None) -> Lane:
        host = _host(member.config)
        ident: tuple[str, Secret | str] = (host, secret if secret is not None else member.name)
        key = self._keys.get(ident)
        if key is None:
            key = self._keys[ident] = self._key(member.config, secret)
        lane = self._lanes.get((member.name, key))
        if lane is None or lane.member is not member:
            lane = self._lanes[member.name, key] = Lane(member, key, table.deployment_for(member.config, secret))
            self._deployments[member.name] = lane.deployment
            key.members = [m for m in key.members if m.name != member.name] + [member]
            if self.greet is not None:
                self.greet(lane)
            while len(self._lanes) > max(MOST_LANES, 4 * len(self.members)):
                (_, gone), _ = self._lanes.popitem(last=False)
                self._keys = {ident: key for ident, key in self._keys.items() if key is not gone}
        else:
            self._lanes.move_to_end((member.name, key))
        return lane


def _host(config: LLMConfig) -> str:
    return urlsplit(config.base_url).netloc if config.base_url else config.provider or ""


def _hash(named: str) -> str:
    """Return what a key is called where others read it."""
    return hashlib.sha256(named.encode()).hexdigest()[:20]


def provider_of(config: LLMConfig) -> Provider:
    """Return who serves a model.

    Raises:
        ConfigurationError: provider, dialect or address cannot be used; says of which model.
    """
    try:
        return table.deployment_for(config, None).provider
    except InvalidRequestError as error:
        raise ConfigurationError(f"The model {config.name!r} cannot be used: {error}") from None


def needs_key(config: LLMConfig, provider: Provider) -> bool:
    """Whether a model cannot be asked without a key."""
    return bool(config.api_key_ref) or (provider.needs_key and config.api_key_ref is None)


def refs_of(config: LLMConfig, provider: Provider) -> tuple[str, ...]:
    """Return the names under which a model's key may be found; none where none may be sent there."""
    if config.api_key_ref is not None:
        return (config.api_key_ref,) if config.api_key_ref else ()
    return table.key_names(provider, config.base_url)
