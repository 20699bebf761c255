"""Write the generated parts of the documentation: tables and pictures that come from the code, so that they cannot lie.

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->`` in a Markdown page. ``--check`` writes nothing and
fails, naming the pages, when a part is stale.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

DOCS = Path(__file__).resolve().parent
CHECKOUT = DOCS.parent
PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def first_sentence(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


# -- parts -----------------------------------------------------------------------------------------------------------------


def errors() -> str:
    """The tree of errors, each with its first sentence."""
    from llmbroker import errors as room

    rows: list[list[str]] = []

    def walk(cls: type[BaseException], depth: int) -> None:
        indent = "&emsp;" * depth
        kind = getattr(cls, "kind", "")
        rows.append([f'{indent}<span id="{cls.__name__.lower()}"></span>`{cls.__name__}`', str(kind), first_sentence(cls)])
        for child in sorted(cls.__subclasses__(), key=lambda c: list(vars(room)).index(c.__name__)):
            walk(child, depth + 1)

    walk(room.LLMBrokerError, 0)
    return table(["error", "kind", "when"], rows)


def names() -> str:
    """The public names that are no errors, each with its first sentence."""
    import llmbroker

    things = [(name, getattr(llmbroker, name)) for name in llmbroker.__all__]
    plain = [(name, thing) for name, thing in things if not (isinstance(thing, type) and issubclass(thing, Exception))]
    return table(["name", "what it is"], [[f"`{name}`", first_sentence(thing)] for name, thing in plain])


def api() -> str:
    """Every public name with its signature, methods and fields: a change of the published interface shows here."""
    import llmbroker

    lines = []
    for name in llmbroker.__all__:
        thing = getattr(llmbroker, name)
        if not isinstance(thing, type):
            lines.append(f"{name}{_signature(thing)}")
            continue
        lines.append(f"class {name}({', '.join(base.__name__ for base in thing.__bases__)}){_signature(thing.__init__)}")
        for member, value in sorted(inspect.getmembers_static(thing)):
            if member.startswith("_") or member in vars(object) or _inherited_from_python(thing, member):
                continue
            kind = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            lines.append(f"    {member}{_signature(kind)}")
    return re.sub(r" at 0x[0-9a-f]+", "", "\n".join(lines)) + "\n"


def _signature(thing: object) -> str:
    text = str(inspect.signature(thing)) if inspect.isfunction(thing) else ""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _inherited_from_python(thing: type, member: str) -> bool:
    owner = next(base for base in thing.__mro__ if member in vars(base))
    return owner.__module__ == "builtins"


def rooms() -> str:
    """The picture of the rooms, from the contract that keeps them apart, with the first line of each room's own words."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [c for c in settings["tool"]["importlinter"]["contracts"] if c["id"] == "rooms"]
    lines = []
    for layer in contract["layers"]:
        present = [name for name in re.findall(r"\w+", layer) if _room(name)]
        if present:
            lines.append("   ".join(present))
    width = max(map(len, lines)) + 4
    bar = "+" + "-" * width + "+"
    picture = "\n".join(f"|{line.center(width)}|" for line in lines)
    return f"```text\n{bar}\n{picture}\n{bar}\n```"


def room_table() -> str:
    """What lives in each room, from the ground up."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [c for c in settings["tool"]["importlinter"]["contracts"] if c["id"] == "rooms"]
    names = [name for layer in reversed(contract["layers"]) for name in re.findall(r"\w+", layer)]
    rows = []
    for name in names:
        path = _room(name)
        if path:
            text = _docstring(path)
            rows.append([f"`{name}`", text])
    return table(["room", "what lives there"], rows)


def _room(name: str) -> Path | None:
    package = CHECKOUT / "src" / "llmbroker"
    return next((path for path in (package / f"{name}.py", package / name / "__init__.py") if path.is_file()), None)


def _docstring(path: Path) -> str:
    import ast

    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def pool() -> str:
    """The free pool of the packaged catalog."""
    from llmbroker.catalog import load_catalog

    catalog = load_catalog()
    rows = [
        [f"`{c.name}`", f"`{c.model}`", f"`{c.api_key_ref}`", f"{c.weight:.2f}", _context(catalog.able(c).context_tokens)]
        for c in catalog.pool
    ]
    return f"As of {catalog.as_of}:\n\n" + table(["name", "model", "key", "weight", "context"], rows)


def aliases() -> str:
    """The aliases of the packaged catalog."""
    from llmbroker.catalog import load_catalog

    catalog = load_catalog()
    rows = [
        [f"`{alias}`", f"`{c.name}`", f"`{c.api_key_ref}`", _context(catalog.able(c).context_tokens), _params(c.tool_params)]
        for alias, c in catalog.aliases.items()
    ]
    return f"As of {catalog.as_of}:\n\n" + table(["alias", "name", "key", "context", "with tools"], rows)


def illnesses() -> str:
    """What a model may suffer from, and how long it rests where the provider states nothing."""
    from llmbroker import health

    found = [thing for thing in vars(health).values() if isinstance(thing, health.Illness)]
    rows = [
        [f"`{i.word}`", f"{i.rest:,.0f} s", f"{i.longest:,.0f} s", "waits" if i.queue else "does not wait"]
        for i in sorted(found, key=lambda i: i.rest)
    ]
    return table(["`reason`", "first rest", "longest", "a call with nobody else"], rows)


def keys() -> str:
    """Where keys come from."""
    from llmbroker.catalog import load_catalog

    rows = [[f"`{k.ref}`", "free" if k.free else "paid", k.help, f"<{k.url}>"] for k in load_catalog().keys.values()]
    return table(["variable", "", "what it takes", "page"], rows)


def _context(tokens: int | None) -> str:
    return f"{tokens:,}" if tokens else "not known"


def _params(params: object) -> str:
    return ", ".join(f'`{name}="{value}"`' for name, value in dict(params).items()) if params else ""  # type: ignore[call-overload]


def commands() -> str:
    """The commands of the command line, each with its line in the help."""
    from llmbroker.faces.cli import COMMANDS

    return table(["command", "what it does"], [[f"`llmbroker {name}`", words] for name, (_, words) in COMMANDS.items()])


def command_help() -> str:
    """What every command is for, and its options. Not argparse's own page: its form differs from Python to Python."""
    from llmbroker.faces.cli import COMMANDS, parser_of

    parts = []
    for name in COMMANDS:
        parser = parser_of(name)
        rows = []
        for action in parser._actions[1:]:
            value = action.metavar or (
                "|".join(action.choices) if action.choices else "" if action.nargs == 0 else action.dest.upper()
            )
            shown = ", ".join(action.option_strings) if action.option_strings else ""
            words = " ".join((action.help or "").split())
            rows.append(
                [f"`{shown} {value}`".replace("` ", "`").replace(" `", "`") if shown or value else f"`{action.dest}`", words]
            )
        parts.append(
            f"### {name}\n\n```text\n{(parser.description or '').strip()}\n```\n\n{table(['option', ''], rows) if rows else ''}"
        )
    return "\n\n".join(part.strip() for part in parts)


def exit_codes() -> str:
    """The exit codes and what they mean."""
    from llmbroker.faces.cli.codes import MEANINGS

    return table(["code", "meaning"], [[str(code), words] for code, words in MEANINGS.items()])


def of_providers(name: str) -> Callable[[], str]:
    """Make a part of a table of ``provider_tables``."""

    def make() -> str:
        sys.path.insert(0, str(DOCS))
        import provider_tables

        return table(*getattr(provider_tables, name)())

    return make


PARTS: dict[str, Callable[[], str]] = {
    **{name.replace("_", "-"): of_providers(name) for name in ("providers", "parameters", "usage", "error_codes")},
    "aliases": aliases,
    "errors": errors,
    "illnesses": illnesses,
    "keys": keys,
    "names": names,
    "command-help": command_help,
    "commands": commands,
    "exit-codes": exit_codes,
    "pool": pool,
    "rooms": rooms,
    "room-table": room_table,
}

FILES: dict[str, Callable[[], str]] = {"api.txt": api}


def main(arguments: list[str]) -> int:
    made: dict[str, str] = {}
    stale = []

    def fill(match: re.Match[str]) -> str:
        name = match[2]
        if name not in made:
            made[name] = PARTS[name]()
        return f"{match[1]}\n{made[name]}\n\n{match[3]}"

    for page in [*sorted(DOCS.rglob("*.md")), CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md"]:
        text = page.read_text(encoding="utf-8")
        new = PART.sub(fill, text)
        if new != text:
            stale.append(page.relative_to(CHECKOUT).as_posix())
            if "--check" not in arguments:
                page.write_text(new, encoding="utf-8")
    for name, make in FILES.items():
        path, text = DOCS / name, make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(CHECKOUT).as_posix())
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in arguments:
        print(f"stale: {', '.join(stale)}; `make tables` writes them anew", file=sys.stderr)
        return 1
    print(f"{len(made)} generated parts, {'all fresh' if not stale else 'written: ' + ', '.join(stale)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
