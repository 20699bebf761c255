"""The journal played against other policies: would one model, the cheapest, a lot have served these calls as well?

``rows`` reads the journal, ``world`` says what a model would have done, ``policies`` and ``pool`` (the real broker in virtual
time) make episodes of it, ``measure`` makes figures with intervals of them, ``verdict`` says what follows, ``run`` puts it
together. Below the faces, above everything that it plays: it reads a journal and calls no model.
"""

from __future__ import annotations

from llmbroker.replaying.measure import Figure
from llmbroker.replaying.result import ModelRows, Policy, Replayed
from llmbroker.replaying.run import POLICIES, replay

__all__ = ["POLICIES", "Figure", "ModelRows", "Policy", "Replayed", "replay"]
