"""More worlds for the routing simulator: what goes wrong elsewhere than in its workload, and ratings that say the opposite.

It runs in the folder of the simulator and takes its arguments; its profiles run beside those of the simulator. Everybody meets
the same luck, as there. Rows of rated profiles have two fields more: ``regret``, the mean difference between the best model's
true quality and that of the model that answered (all of it where nobody did), and ``hits``, for each call whether the best
answered.
"""

from __future__ import annotations

import asyncio
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


def _home(slots: int | None, *, alone: bool = False) -> dict[str, Any]:
    """Return the world of a good model that serves so many at once and lets the others wait in silence, and of a slower one."""
    models: dict[str, Any] = {}
    for name, weight, samples in (
        ("home", 0.8, [[1.5, 1], [2.0, 2], [3.0, 1]]),
        ("cloud", 0.6, [[5.0, 1], [6.0, 2], [8.0, 1]]),
    ):
        models[name] = {
            "weight": weight, "key": f"KEY_{name}", "base_url": f"http://{name}.test/v1", "model": name,
            "latency": {"samples": samples, "ttft_fraction": [0.5]}, "limit": {"kind": "none"},
            "empty": {"p": 0.0, "latency": []}, "reject_latency": [0.1], "tokens": {"prompt": 500, "completion": [200]},
            "quality": {"en": {"payload_ok": weight, "markup_ok": 1.0}},
        }  # fmt: skip
    if alone:
        del models["cloud"]
    return {"langs": ["en"] * 3, "providers": models, "slots": {"home": slots} if slots else {}}


CALLS, DRIFT_AT = 400, 200
WORLDS = {name: _four(before, after, DRIFT_AT) for name, (before, after) in RATED.items()}
WORLDS |= {"home1_w25": _home(1), "home4_w25": _home(4), "homes_w25": _home(None), "home1_alone_w25": _home(1, alone=True)}

PROFILES: dict[str, dict[str, Any]] = {
    **{name: {"n": CALLS, "gap": 5, "wait": 25, "rate": True} for name in RATED},
    **{name: {"n": 600, "k": 16, "wait": 25} for name in ("home1_w25", "home4_w25", "homes_w25", "home1_alone_w25")},
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
    """A world in which a model can be slow for a while, qualities change, and a provider lets requests wait in silence."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.slots = {name: asyncio.Semaphore(count) for name, count in self.wl.get("slots", {}).items()}

    async def call(self, url: str, headers: Any, body: Any, read_timeout: float | None) -> Any:
        """Exchange one request; where all slots are taken it waits for one, in the order of arrival."""
        name = self.by_url[(url.rsplit("/chat/completions", 1)[0], body["model"])]
        slots = self.slots.get(name)
        if slots is None:
            return await super().call(url, headers, body, read_timeout)
        began, row = self.now(), None
        if slots.locked():
            row = {"req": int(sim.REQ.search(str(body["messages"]))[1]), "llm": name, "t": round(began, 3), "empty": False}
            row["status"] = "cancelled"
            self.log.append(row)
        try:
            async with asyncio.timeout(read_timeout):
                await slots.acquire()
        except TimeoutError:
            row["status"] = "timeout"
            raise
        finally:
            if row is not None:
                row["dt"] = round(self.now() - began, 3)
        if row is not None:
            self.log.remove(row)
        try:
            left = None if read_timeout is None else max(0.001, read_timeout - (self.now() - began))
            return await super().call(url, headers, body, left)
        finally:
            slots.release()

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
