"""Files that are replaced whole: a reader sees the old one or the new one, never a half, also after the power failed.

Nothing else may be in here: who writes a file says what is in it, and where it belongs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty file beside a path; when the block ends it takes that path, when it fails nothing is left of it.

    A new file is readable by its owner alone; one that takes the place of another has the other's permissions.

    Raises:
        OSError: it cannot be written, or cannot take the path.
    """
    part = path.parent / f".{path.name[:40]}.{os.getpid()}-{os.urandom(4).hex()}.part"
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield part
        with contextlib.suppress(FileNotFoundError):
            part.chmod(path.stat().st_mode & 0o777)
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    if os.name == "posix":  # elsewhere a folder cannot be opened, and its entries are written as they change
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some file systems know no such thing; the new file is in its place
                os.fsync(folder)
        finally:
            os.close(folder)


def replace(path: Path, data: bytes) -> None:
    """Put a file with this content in place of the one at a path, or make it; permissions and errors as of ``replacing``."""
    with replacing(path) as part:
        part.write_bytes(data)
