"""``llmbroker journal``: delete what is old, copy the whole. Reading it is done by ``calls`` and ``stats``."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from llmbroker.errors import ConfigurationError, InvalidRequestError
from llmbroker.faces.cli.journal import moment
from llmbroker.faces.cli.output import local_time, print_json
from llmbroker.faces.cli.rows import opened
from llmbroker.files import replacing
from llmbroker.journal import Journal

HELP = {
    "journal": "Delete old rows of the journal, or copy the whole of it while it is in use.\n\n"
    "  llmbroker journal prune --keep 30          days\n"
    "  llmbroker journal prune --before 2026-05-01 --dry-run\n"
    "  llmbroker journal backup journal-copy.db\n\n"
    "A backup holds everything that is in the database: rows, ratings, model list, stored keys (encrypted). A journal in\n"
    "PostgreSQL is copied by pg_dump."
}


def journal_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("what", choices=("prune", "backup"), help="prune deletes old rows, backup copies everything")
    parser.add_argument("file", nargs="?", metavar="FILE", help="where the copy goes; it must not be there yet")
    parser.add_argument("--before", metavar="WHEN", help="prune what began before: 30d, 12w ago, or a date or time")
    parser.add_argument("--keep", type=int, metavar="DAYS", help="prune what is older than so many days")
    parser.add_argument("--dry-run", action="store_true", help="only say how many rows prune would delete")
    parser.add_argument("--source", "--db", metavar="PATH", help="a database; else the journal in llmbroker's own folder")
    parser.add_argument("--json", action="store_true", help="print JSON")


def journal(arguments: argparse.Namespace) -> int:
    """Do the one or the other."""
    return _prune(arguments) if arguments.what == "prune" else _backup(arguments)


def _prune(arguments: argparse.Namespace) -> int:
    if arguments.file is not None:
        raise InvalidRequestError("prune takes no file; --source names the database.", argument="FILE")
    before = _border(arguments)
    with opened(arguments.source) as found:
        if found is None:
            count = 0
        elif arguments.dry_run:
            count = sum(group.total for group in found.stats(by="all", until=before).values())
        else:
            count = found.prune(before=before)
    if arguments.json:
        print_json({"before": before, "rows": count, "deleted": not arguments.dry_run})
        return 0
    what = "would be deleted" if arguments.dry_run else "deleted"
    print(f"{count} row{'' if count == 1 else 's'} from before {local_time(before)} {what}, with the ratings.")
    return 0


def _border(arguments: argparse.Namespace) -> datetime:
    if (arguments.before is None) == (arguments.keep is None):
        raise InvalidRequestError("Give exactly one of --before WHEN and --keep DAYS.", argument="--before")
    if arguments.keep is not None:
        if not 0 <= arguments.keep <= 36_500:
            raise InvalidRequestError(f"--keep is a number of days from 0 on, not {arguments.keep}.", argument="--keep")
        return datetime.now(UTC) - timedelta(days=arguments.keep)
    found = moment(arguments.before)
    if found is None:
        raise InvalidRequestError("--before is empty: write 30d, or 2026-05-01.", argument="--before")
    return found


def _backup(arguments: argparse.Namespace) -> int:
    if not arguments.file:
        raise InvalidRequestError("Say where the copy goes: llmbroker journal backup FILE.", argument="FILE")
    target = Path(arguments.file).expanduser().absolute()
    with opened(arguments.source) as found:
        if found is None or found.store is None:
            raise ConfigurationError("There is no journal yet, so there is nothing to copy.")
        if (waiting := not found.flush()) and not arguments.json:
            print("Some rows wait in a file beside the database and are not in the copy.")
        rows = _copied(found, target)
    size = target.stat().st_size
    if arguments.json:
        print_json({"file": str(target), "bytes": size, "rows": rows, "complete": not waiting})
        return 0
    print(f"{rows} row{'' if rows == 1 else 's'} copied to {target} ({size:,} bytes).")
    return 0


def _copied(found: Journal, target: Path) -> int:
    """Copy a SQLite database page by page, while others write to it; return how many calls the copy holds.

    Raises:
        ConfigurationError: it is none, the target is there already, or the copy failed.
    """
    import sqlite3

    where: Any = getattr(found.store, "path", None)
    if not isinstance(where, Path):
        raise ConfigurationError(
            "Only a SQLite journal is copied by this command.", hint="For PostgreSQL: pg_dump DATABASE > FILE."
        )
    try:
        if target.exists():
            raise ConfigurationError(f"{target} is there already.", hint="Name another file, or move that one away.")
        with replacing(target) as part:
            source, copy = sqlite3.connect(str(where), timeout=5.0), sqlite3.connect(str(part))
            try:
                source.backup(copy, pages=512, sleep=0.01)
                copy.execute("PRAGMA journal_mode=DELETE")  # one file, nothing beside it
                if copy.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                    raise ConfigurationError(f"{where} is damaged, and so is its copy; nothing was kept.")
                return int(copy.execute("SELECT count(*) FROM llmbroker_calls").fetchone()[0])
            finally:
                source.close()
                copy.close()
    except (OSError, sqlite3.Error) as error:
        raise ConfigurationError(f"{where} could not be copied to {target}: {error}.") from error
