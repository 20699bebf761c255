"""More worlds for the routing simulator: what goes wrong elsewhere than in its workload, and ratings that say the opposite.

It runs in the folder of the simulator and takes its arguments; its profiles run beside those of the simulator. Everybody meets
the same luck, as there. Rows of rated profiles have two fields more: ``regret``, the mean difference between the best model's
true quality and that of the model that answered (all of it where nobody did), and ``hits``, for each call whether the best
answered.
"""

from __future__ import annotations

import copy
import os
import sys
from typing import Any

import sim  # type: ignore[import-not-found]

if __name__ == "__main__" and os.environ.get("VCLOCK") != "1":
    os.environ.update(VCLOCK="1", LD_PRELOAD=sim.SO, PYTHONHASHSEED="0", LITELLM_LOCAL_MODEL_COST_MAP="True")
    os.environ.update(LITELLM_LOG="CRITICAL", DO_NOT_TRACK="1", LITELLM_TELEMETRY="False")
    os.execv(sys.executable, [sys.executable, *sys.argv])

GOOGLE, GROQ, EVERYBODY, EVER = "google", "groq", "", 1e12
WEIGHTS = (0.9, 0.7, 0.5, 0.3)
REVERSED = WEIGHTS[::-1]
ALIKE = (0.6, 0.65, 0.7, 0.75)


def _faults(*faults: tuple[str, str, float, float]) -> dict[str, Any]:
    return {"faults": list(faults)}


def _four(before: tuple[float, ...], after: tuple[float, ...], at: int) -> dict[str, Any]:
    """Return the world of four quick models without limits, of these true qualities before and after a call."""
    models: dict[str, Any] = {}
    for index, weight in enumerate(WEIGHTS):
        models[f"model-{index}"] = {
            "weight": weight, "key": f"KEY_{index}", "base_url": f"http://{index}.test/v1", "model": f"m{index}",
            "latency": {"samples": [[1.0, 1], [1.5, 2], [2.5, 1]], "ttft_fraction": [0.5]}, "limit": {"kind": "none"},
            "empty": {"p": 0.0, "latency": []}, "reject_latency": [0.1], "tokens": {"prompt": 500, "completion": [200]},
            "quality": {
                "en": {"payload_ok": before[index], "markup_ok": 1.0}, "late": {"payload_ok": after[index], "markup_ok": 1.0},
            },
        }  # fmt: skip
    return {"langs": ["en"] * 3, "providers": models, "drift_at": at}


RATED: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "rated_reversed": (REVERSED, WEIGHTS),
    "rated_listed": (WEIGHTS, REVERSED),
    "rated_alike": (ALIKE, ALIKE[::-1]),
}
CALLS, DRIFT_AT = 400, 200
WORLDS = {name: _four(before, after, DRIFT_AT) for name, (before, after) in RATED.items()}

PROFILES: dict[str, dict[str, Any]] = {
    **{name: {"n": CALLS, "gap": 5, "wait": 25, "rate": True} for name in RATED},
    "storm40_w25": {"n": 240, "k": 40, "wait": 25},
    "dies_midway_w25": {"n": 120, "k": 4, "wait": 25, "sc": _faults(("dead", GOOGLE, 120, EVER))},
    "spent_w10": {"n": 120, "k": 4, "wait": 10, "sc": {"daily_used": 50}},
    "all_hang_w25": {"n": 144, "gap": 5, "wait": 25, "sc": _faults(("hang", EVERYBODY, 60, 180))},
    "all_down_w25": {"n": 144, "gap": 5, "wait": 25, "sc": _faults(("down", EVERYBODY, 60, 180))},
    "best_slow_w25": {"n": 144, "gap": 5, "wait": 25, "sc": _faults(("slow", GOOGLE, 60, 360))},
    "flaps_w25": {"n": 144, "gap": 5, "wait": 25, "sc": _faults(*(("down", GOOGLE, at, at + 20) for at in range(60, 600, 60)))},
    "hang_both_w45": {"n": 120, "k": 4, "wait": 45, "sc": _faults(("hang", GOOGLE, 60, 240), ("hang", GROQ, 60, 240))},
}


class World(sim.World):  # type: ignore[misc]
    """A world in which a model can be slow for a while and qualities change."""

    def draw(self, n: str, req: int, lang: str, k: int) -> Any:
        """Draw what comes of an attempt."""
        return super().draw(n, req, "late" if req >= self.wl.get("drift_at", EVER) else lang, k)

    def latency(self, n: str, d: Any, t: float) -> float:
        """Return how long an answer takes."""
        return float(super().latency(n, d, t)) * (6.0 if self.mode(n, t) == "slow" else 1.0)


def _with_regret(run: Any) -> Any:
    async def run_one(mod: Any, wl: Any, prof: str, seed: int, clock: Any) -> Any:
        made, rows, log = await run(mod, WORLDS.get(prof) or copy.copy(wl), prof, seed, clock)
        if prof in RATED:
            losses = []
            for row in rows:
                truth = RATED[prof][row["i"] >= DRIFT_AT]
                losses.append(max(truth) - (truth[int(row["llm"].rsplit("-", 1)[1])] if row["ok"] else 0.0))
            made["regret"] = sum(losses) / len(losses)
            made["hits"] = [int(loss == 0.0) for loss in losses]
        return made, rows, log

    return run_one


if __name__ == "__main__":
    sim.World = World
    sim.PROFILES.update(PROFILES)
    sim.run_one = _with_regret(sim.run_one)
    sim.main()
