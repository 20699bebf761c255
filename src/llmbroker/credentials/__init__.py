"""Where keys come from, and how they are kept out of sight.

A key value travels as a ``Secret``: its repr, str and JSON show stars. ``KeyRing`` finds it, in one order of places. ``redact``
removes known values from a text that came from outside, ``mask`` what looks like a key. Nothing here prints, logs or stores a
value in clear.
"""

from __future__ import annotations

from llmbroker.credentials.redaction import Secret, mask, redact
from llmbroker.credentials.ring import KeyRing
from llmbroker.credentials.stored import MASTER, SecretStore, StoredKeys

__all__ = ["MASTER", "KeyRing", "Secret", "SecretStore", "StoredKeys", "mask", "redact"]
