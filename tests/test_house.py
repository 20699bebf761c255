"""The house rules, as tests: numbers and promises about the code itself that would rot as mere sentences."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import llmbroker

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGE = CHECKOUT / "src" / "llmbroker"
SOURCES = sorted(PACKAGE.rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


# -- size and shape --------------------------------------------------------------------------------------------------------


def test_no_source_file_is_longer_than_500_lines() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


def body_lines(function: Function) -> int:
    """Count lines without the docstring: prose is no complexity."""
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def test_no_function_is_longer_than_60_lines() -> None:
    long = {f"{name_of(path)}:{f.name}": body_lines(f) for path in SOURCES for f in functions(parsed(path))}
    assert {name: length for name, length in long.items() if length > 60} == {}


def test_every_module_says_which_room_it_is() -> None:
    assert [name_of(path) for path in SOURCES if not ast.get_docstring(parsed(path))] == []


# What may be imported inside a function, since it is slow to import or not on every machine, and few calls need it.
# Everything else stands at the top, where a cycle shows.
HEAVY_NAMES = """
anyio mimetypes narwhals polars
aiohttp asyncio certifi concurrent cryptography ctypes cyclopts dbos difflib dotenv ensurepip fcntl genai_prices getpass
hashlib html http importlib inspect ipaddress json_repair keyring logging matplotlib mcp msvcrt multiprocessing opentelemetry
pandas platformdirs psycopg pydantic readline rich secrets shutil signal socket sqlite3 ssl subprocess tempfile tomllib
traceback typing unicodedata urllib uuid webbrowser xllamacpp zipfile
"""
HEAVY = set(HEAVY_NAMES.split())


def imports_in_functions(tree: ast.Module) -> Iterator[str]:
    for function in functions(tree):
        for node in ast.walk(function):
            yield from modules_of(node)


def modules_of(node: ast.AST) -> list[str]:
    """Return the modules that an import statement loads; a name imported from a package of ours may be a module of it."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or not node.module:
        return []
    inner = [f"{node.module}.{alias.name}" for alias in node.names]
    return [module for module in inner if source_of(module)] or [node.module]


@functools.cache
def source_of(module: str) -> Path | None:
    """Return the file of a module of ours, or None."""
    if module.split(".")[0] != "llmbroker":
        return None
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def loads(module: str, seen: set[str]) -> bool:
    """Tell whether importing a module of ours loads something heavy, at its top or by what it imports there."""
    path = source_of(module)
    if path is None:
        return module.split(".")[0] in HEAVY
    if module in seen:
        return False
    seen.add(module)
    return any(loads(inner, seen) for node in parsed(path).body for inner in modules_of(node))


def test_an_import_inside_a_function_is_of_something_heavy() -> None:
    found = {
        f"{name_of(path)}: {module}"
        for path in SOURCES
        if not name_of(path).startswith(("__main__", "faces/cli/"))  # a command loads what it needs and starts quickly
        for module in imports_in_functions(parsed(path))
        if not loads(module, set())
    }
    assert found == set()


HEAVY_AT_IMPORT = (
    "aiohttp", "asyncio", "cyclopts", "genai_prices", "httpx2", "json_repair", "msgspec", "pandas", "platformdirs", "psycopg",
    "pydantic", "rich", "sqlite3", "ssl", "xllamacpp", "http.client",
)  # fmt: skip


def loaded_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        cwd=CHECKOUT,
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import llmbroker").intersection(HEAVY_AT_IMPORT) == set()


# -- public names ----------------------------------------------------------------------------------------------------------


def test_public_names_are_sorted_and_can_be_had() -> None:
    assert sorted(llmbroker.__all__) == llmbroker.__all__
    assert [name for name in llmbroker.__all__ if getattr(llmbroker, name, None) is None] == []
    with pytest.raises(AttributeError, match="no_such_name"):
        llmbroker.no_such_name  # noqa: B018


def test_the_lazy_names_are_the_ones_type_checkers_see() -> None:
    guarded = next(node for node in parsed(PACKAGE / "__init__.py").body if isinstance(node, ast.If))
    seen = {alias.name: f"{node.module}" for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    rooms = {name: f"llmbroker.{llmbroker._ROOM_OF.get(name, 'errors')}" for name in llmbroker.__all__}
    assert seen == rooms


def test_public_names_are_documented_in_one_sentence_first() -> None:
    without = [name for name in llmbroker.__all__ if not (getattr(llmbroker, name).__doc__ or "").strip()]
    assert without == []


def documentation() -> str:
    pages = [*(CHECKOUT / "docs").rglob("*.md"), CHECKOUT / "README.md"]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def test_public_names_stand_in_the_documentation() -> None:
    words = set(re.findall(r"\w+", documentation()))
    assert [name for name in llmbroker.__all__ if name not in words] == []


def public_methods(face: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(face, callable) if not name.startswith("_")}


TWINS = [("Broker", "AsyncBroker"), ("DirectClient", "AsyncDirectClient")]
CLOSERS = {"close", "aclose", "drive"}


@pytest.mark.parametrize(("plain", "awaited"), TWINS)
def test_the_two_faces_have_equal_signatures(plain: str, awaited: str) -> None:
    if not {plain, awaited} <= set(llmbroker.__all__):
        pytest.skip(f"{plain} is not public yet")
    one, other = getattr(llmbroker, plain), getattr(llmbroker, awaited)
    mine, theirs = public_methods(one), public_methods(other)
    assert set(mine) - CLOSERS == set(theirs) - CLOSERS
    names = [*sorted(set(mine) & set(theirs)), "__init__"]
    differ = {
        name: (str(a), str(b))
        for name in names
        if (a := inspect.signature(getattr(one, name)).parameters) != (b := inspect.signature(getattr(other, name)).parameters)
    }
    assert differ == {}


# -- providers -------------------------------------------------------------------------------------------------------------


def provider_ids() -> set[str]:
    table = pytest.importorskip("llmbroker.providers.table")
    return {provider.id for provider in table.PROVIDERS.values()}


def strings_in(node: ast.expr) -> Iterator[str]:
    return (leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str))


def compared_strings(tree: ast.AST) -> Iterator[str]:
    """Yield string constants that a condition compares with something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and ast.unparse(node.left) in {"dialect", "dialect.name"}:
            continue  # some wire formats bear a vendor's name; this asks for the format
        if isinstance(node, ast.Compare):
            yield from (text for side in (node.left, *node.comparators) for text in strings_in(side))
        elif isinstance(node, ast.MatchValue):
            yield from strings_in(node.value)
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"startswith", "endswith"}
        ):
            yield from (text for argument in node.args for text in strings_in(argument))


def test_a_provider_is_compared_by_name_nowhere_but_in_its_own_file() -> None:
    ids = provider_ids()
    found = {
        f"{name_of(path)}: {text}"
        for path in SOURCES
        for text in compared_strings(parsed(path))
        if text in ids and path.stem not in {text, text.replace("-", "_"), "vendors"}  # the rows stand in `vendors`
    }
    assert found == set()


# -- tests, layers, the tree -----------------------------------------------------------------------------------------------


def has_test(path: Path) -> bool:
    """A source file has a test of its name, or its room has a folder of tests; ``__main__`` is the command line."""
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py").replace("__main__", "faces")
    tests = CHECKOUT / "tests"
    if any((tests / room).glob("test_*.py")):
        return True
    return any(tests.rglob(f"test_{room}*.py"))


def test_every_source_file_has_its_test() -> None:
    assert [name_of(path) for path in SOURCES if path.stem != "__init__" and not has_test(path)] == []


def test_nothing_is_mocked() -> None:
    """The port is scripted instead."""
    word = "unittest" + ".mock"
    tests = sorted((CHECKOUT / "tests").rglob("*.py"))
    assert [
        path.name for path in tests if word in path.read_text(encoding="utf-8") or "Magic" + "Mock" in path.read_text()
    ] == []


def layers() -> list[str]:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [c for c in settings["tool"]["importlinter"]["contracts"] if c["id"] == "rooms"]
    assert contract["exhaustive"]
    return [re.sub(r"[()\s]", "", room) for layer in contract["layers"] for room in re.split(r"[:|]", layer)]


def test_every_folder_of_the_package_is_a_package() -> None:
    """A folder without ``__init__.py`` would be invisible to the contract of the layers."""
    folders = {path.parent for path in SOURCES}
    assert [name_of(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_room_stands_in_the_layers() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in SOURCES} - {"__init__"}
    assert rooms <= set(layers())


def test_rooms_do_not_import_from_the_front_door() -> None:
    found = [
        name_of(path)
        for path in SOURCES
        if not name_of(path).startswith("faces/")  # faces stand outside, as users do
        for node in ast.walk(parsed(path))
        if (isinstance(node, ast.ImportFrom) and node.module == "llmbroker" and modules_of(node) == ["llmbroker"])
        or (isinstance(node, ast.Import) and any(alias.name == "llmbroker" for alias in node.names))
    ]
    assert found == []


def tracked_files() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], capture_output=True, cwd=CHECKOUT, check=False)
    if done.returncode:
        pytest.skip("this is no checkout")
    paths = (CHECKOUT / name for name in done.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


# Written apart, so that this file does not hold what it looks for.
FOREIGN = re.compile(
    r"://[^ /\"']*(?:pyp"
    + r"i|pythonhost"
    + r"ed|npm"
    + r"js|debia"
    + r"n)"
    + r"|(?<![\w.])/(?:wo"
    + r"rk|ro"
    + r"ot|far"
    + r"m|ho"
    + r"me)/\w"
    r"|(?<!\w)/tm" + r"p/[a-z]"
)


def test_no_file_names_a_path_of_one_machine_or_a_package_registry() -> None:
    found = [
        f"{path.relative_to(CHECKOUT)}:{number}"
        for path in tracked_files()
        if path.suffix not in {".gguf", ".png", ".gz"}
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert found == []


def test_the_lock_file_pins_every_dependency() -> None:
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*settings["dependencies"], *(item for extra in settings["optional-dependencies"].values() for item in extra)]
    names = {re.split(r"[\[<>=;~! ]", item)[0].lower().replace("_", "-") for item in wanted} - {"llmbroker"}
    pinned = dict(
        re.findall(r"^([\w.-]+)(?:\[[^\]]*\])?==(\S+)", (CHECKOUT / "requirements.lock").read_text(encoding="utf-8"), re.M)
    )
    assert names - set(pinned) == set()


def test_every_target_of_the_makefile_is_explained() -> None:
    lines = (CHECKOUT / "Makefile").read_text(encoding="utf-8").splitlines()
    declared = next(line for line in lines if line.startswith(".PHONY:")).split()[1:]
    explained = {line.split(":")[0] for line in lines if re.match(r"[a-z-]+:.*## ", line)}
    assert set(declared) - explained == {"need-shared"}


def test_errors_form_one_tree() -> None:
    from llmbroker import errors

    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, BaseException)]
    assert [c.__name__ for c in classes if not issubclass(c, errors.LLMBrokerError)] == []
    assert [c.__name__ for c in classes if c.__name__ not in llmbroker.__all__] == []


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert isinstance(llmbroker, ModuleType)
