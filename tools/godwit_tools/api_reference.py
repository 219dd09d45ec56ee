"""Write docs/API.md, the reference of the Python interface, from the signatures and docstrings of the package.

python -m godwit_tools.api_reference
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_origin, is_typeddict

import godwit
from godwit import sync

PAGE: Final = Path(__file__).parents[2] / "docs" / "API.md"
HEAD: Final = """\
# API reference

All public names of `godwit` and `godwit.sync`. The [guide](GUIDE.md) explains how they are used. This page is made from
the source: `python -m godwit_tools.api_reference` writes it.
"""
SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Connect": ("connect", "sync.connect", "run", "Connecting", "Security", "EndpointConfig", "Will", "make_will"),
    "Clients": (
        "sync.BlockingClient",
        "AsyncClient",
        "Statistics",
        "TopicInfo",
        "ClientInfo",
        "CursorInfo",
        "GroupInfo",
        "WorkerInfo",
        "BridgeInfo",
    ),
    "Publish": ("sync.BlockingPublisher", "AsyncPublisher", "MessageOptions"),
    "Subscribe": ("sync.BlockingSubscription", "AsyncSubscription", "Message", "Headers", "Bookmark"),
    "Requests": ("sync.BlockingResponder", "AsyncResponder", "RequestOptions"),
    "Files": ("sync.BlockingFiles", "FileReceiver", "ReceivedFile", "SentFile"),
    "Jobs": ("sync.BlockingJob", "AsyncJob", "JobOptions", "Update", "TaskResult", "TaskView", "JobInfo", "TaskInfo"),
    "Workers": ("Worker", "Task"),
}
"""The order of the page. Errors, and names of types, follow."""
_PARTS: Final = {"Args": "Arguments", "Returns": "Returns", "Raises": "Raises"}


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module that the page describes."""
    return [name for name in module.__all__ if name not in ("__version__", "spark", "sync")]


def page() -> str:
    """Return the text of the whole page."""
    every = [*names_of(godwit), *(f"sync.{name}" for name in names_of(sync))]
    listed = {name for names in SECTIONS.values() for name in names}
    rest = [name for name in every if name not in listed]
    errors = sorted(name for name in rest if _is_error(find(name)))
    types = sorted(name for name in rest if name not in errors)
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [part for name in names for part in describe(name, find(name))]
    parts.append("## Errors\n")
    parts += [part for name in errors for part in describe_error(name, find(name))]
    parts.append("## Types\n\nNames for annotations.\n")
    parts += [part for name in types for part in describe_type(name)]
    return "\n".join(parts)


def find(name: str) -> Any:
    """Return a public object by its name, such as `sync.connect`."""
    found: Any = godwit
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, Exception)


# -- classes and functions --------------------------------------------------------------------------------------------


def describe(name: str, found: Any) -> Iterator[str]:
    """Yield the paragraphs about a class or a function."""
    yield f"### `godwit.{name}`\n"
    if not isinstance(found, type):
        yield signature(name.rpartition(".")[2], found)
        yield document(found.__doc__)
        return
    if is_constructible(found):
        yield signature(found.__name__, found)
    yield document(found.__doc__)
    initial = vars(found).get("__init__")
    if is_constructible(found) and inspect.isfunction(initial) and inspect.getsourcefile(initial):
        yield document(initial.__doc__)
    attributes = list(attributes_of(found))
    if attributes:
        yield "| attribute | meaning |\n|---|---|"
        for attribute, annotation, text in attributes:
            yield f"| `{attribute}`: {_cell(f'`{annotation}`')} | {_cell(text)} |"
        yield ""
    for method, function in methods_of(found):
        yield f"#### `{found.__name__}.{method}`\n"
        yield signature(method, function)
        yield document(function.__doc__)


def is_constructible(found: type) -> bool:
    """Return whether programs make such objects themselves."""
    return "Made by" not in (found.__doc__ or "") and found.__name__ in ("Worker", "Will", "EndpointConfig")


def methods_of(found: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods of a class with their names, in the order of the source."""
    for owner in found.__mro__[:-1]:
        if owner.__module__.partition(".")[0] == "godwit":
            for name, value in vars(owner).items():
                function = value.__func__ if isinstance(value, classmethod) else value
                if not name.startswith("_") and inspect.isfunction(function):
                    yield name, function


def attributes_of(found: type) -> Iterator[tuple[str, str, str]]:
    """Yield the public properties and documented fields of a class: name, annotation, first paragraph of the text."""
    for owner in found.__mro__[:-1]:
        if owner.__module__.partition(".")[0] != "godwit":
            continue
        body = _source(owner.__module__).body
        tree = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == owner.__name__)
        initial = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        for statements in (tree.body, *(node.body for node in initial)):
            yield from _fields(statements, initial)
        for name, value in vars(owner).items():
            if isinstance(value, property) and not name.startswith("_") and value.fget is not None:
                annotation = str(value.fget.__annotations__.get("return", ""))
                yield name, annotation, _first(value.__doc__)


@cache
def _source(module: str) -> ast.Module:
    """Return the parsed source of a module of the package, also if the module runs in its compiled form."""
    path = Path(godwit.__path__[0], *module.split(".")[1:]).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _fields(statements: list[ast.stmt], initial: list[ast.FunctionDef]) -> Iterator[tuple[str, str, str]]:
    """Yield the annotated or documented assignments to public names, in a class or in its `__init__`."""
    arguments = [one for function in initial for one in (*function.args.args, *function.args.kwonlyargs)]
    types = {one.arg: ast.unparse(one.annotation) for one in arguments if one.annotation is not None}
    for statement, follower in zip(statements, [*statements[1:], ast.Pass()], strict=True):
        text = ""
        if isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant):
            text = _first(str(follower.value.value))
        if isinstance(statement, ast.AnnAssign):
            target, annotation = statement.target, ast.unparse(statement.annotation)
        elif isinstance(statement, ast.Assign) and text:
            target = statement.targets[0]  # type: ignore[assignment]
            annotation = _type_of(statement.value, types)
        else:
            continue
        name = target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""
        if name and not name.startswith("_") and (text or (not initial and isinstance(target, ast.Name))):
            yield name, annotation, text


def _type_of(value: ast.expr, types: dict[str, str]) -> str:
    """Return the type of a field that is assigned without an annotation: that of a constant, an argument or a call."""
    if isinstance(value, ast.Constant):
        return type(value.value).__name__
    text = ast.unparse(value)
    return types.get(text, text.partition("(")[0])


def signature(name: str, found: Any) -> str:
    """Return the signature in a fence, with one line for each parameter if it is long."""
    parameters = inspect.signature(found)
    kept = [one for one in parameters.parameters.values() if one.name not in ("self", "cls")]
    prefix = "async " if inspect.iscoroutinefunction(found) else ""
    result = "" if parameters.return_annotation is inspect.Signature.empty else f" -> {parameters.return_annotation}"
    if isinstance(found, type):
        result = ""
    texts = _with_marks(kept)
    line = f"{prefix}{name}({', '.join(texts)}){result}"
    if len(line) > 100:
        line = f"{prefix}{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){result}"
    return f"```text\n{line.replace(chr(39), chr(34))}\n```\n"


def _with_marks(parameters: list[inspect.Parameter]) -> list[str]:
    """Return the parameters as texts, with the star before the ones that are keywords only."""
    texts = []
    has_star = False
    for one in parameters:
        has_star = has_star or one.kind is one.VAR_POSITIONAL
        if one.kind is one.KEYWORD_ONLY and not has_star:
            texts.append("*")
            has_star = True
        star = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        annotation = "" if one.annotation is one.empty else f": {one.annotation}"
        default = "" if one.default is one.empty else f" = {one.default!r}"
        texts.append(f"{star}{one.name}{annotation}{default}")
    return texts


def document(text: str | None) -> str:
    """Return a docstring as Markdown: its parts become lists."""
    lines: list[str] = []
    is_in_part = False
    for line in inspect.cleandoc(text or "").splitlines():
        title = line.rstrip(":")
        if title in _PARTS and line.endswith(":"):
            lines += [f"{_PARTS[title]}:", ""]
            is_in_part = True
        elif is_in_part and re.match(r"^ {4}\S", line):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon and re.fullmatch(r"[\w.]+", name) else f"- {line.strip()}")
        elif is_in_part and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            is_in_part = is_in_part and not line.strip()
            lines.append(line)
    return "\n".join(lines) + "\n"


def _first(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# -- errors and types -------------------------------------------------------------------------------------------------


def describe_error(name: str, found: type[Exception]) -> Iterator[str]:
    """Yield the paragraphs about an error: its bases, its text, its attributes."""
    bases = ", ".join(f"`{base.__name__}`" for base in found.__bases__)
    yield f"### `godwit.{name}`\n"
    yield f"A kind of {bases}.\n" if found.__name__ == name else f"The same as `{found.__name__}`, a kind of {bases}.\n"
    yield document(found.__doc__)
    for attribute, annotation, text in attributes_of(found):
        yield f"- `{attribute}` (`{annotation}`): {text}"
    yield ""


def describe_type(name: str) -> Iterator[str]:
    """Yield the paragraphs about a name for annotations, or an enumeration."""
    found = find(name)
    yield f"### `godwit.{name}`\n"
    if isinstance(found, type) and issubclass(found, enum.Enum):
        yield document(found.__doc__)
        yield ", ".join(f"`{member.name}` ({member.value})" for member in found) + "\n"
        return
    if isinstance(found, type) and get_origin(found) is None and not is_typeddict(found):
        yield document(found.__doc__)
        return
    definition, text = _alias(name)
    yield f"```text\n{name} = {definition}\n```\n"
    yield f"{text}\n" if text else ""


def _alias(name: str) -> tuple[str, str]:
    """Return the definition of a type alias, and its documentation."""
    home = next(module for module, names in godwit._NAMES_BY_MODULE.items() if name in names.split())
    body = _source(f"godwit.{home}").body
    for statement, follower in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name and statement.value:
            is_text = isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant)
            text = _first(str(follower.value.value)) if is_text else ""  # type: ignore[attr-defined]
            return ast.unparse(statement.value).replace("'", '"'), text
    raise LookupError(f"{name} is not defined in godwit.{home}")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
