"""Compile the core while a wheel is built, if there is a C compiler; else the wheel has the sources alone.

`pip install` builds a wheel, and an editable install does so too: its wheel has the compiled core and a pointer to the
sources. `src/godwit/compiled_core.py` describes the package that this makes, docs/decisions/0060 gives the reasons.

mypyc cannot compile the classes of msgspec, named tuples and dataclasses: it loses their options and the types of their
fields. So a module is split before it is compiled. Its data classes go into a second module that is interpreted, and
the compiled one imports each of them where its definition was. When that happens the class is defined in the namespace
of the compiled module (`StructLoader` in compiled_core.py), so that everything is as if it had never been moved.

    GODWIT_CORE=interpreted     do not compile
    GODWIT_CORE=compiled        fail if the core cannot be compiled
    GODWIT_CORE_BUILD=FOLDER    keep generated files and the compiled core here, and use them the next time
"""

from __future__ import annotations

import ast
import hashlib
import os
import runpy
import shutil
import sys
import sysconfig
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "src" / "godwit"
CORE = runpy.run_path(str(PACKAGE / "compiled_core.py"))
REQUIREMENTS = ["mypy[mypyc]>=2.4", "apsw", "cbor2", "crc32c", "msgspec"]
"""The compiler, and what the compiled modules import: the compiler reads its types."""
OPTIMIZATION = "2"


SUBCLASSED = {
    "Broker", "Connection", "DirectLog", "Endpoint", "Outbound", "Peer", "Publication", "Publisher", "SealedConnection",
    "Server",
}  # fmt: skip
"""Classes that interpreted classes inherit from: ports of the core, and parts that tests replace. SealedConnection
inherits its constructor from one of them: mypyc would run it twice, and never free the objects of the first run."""


class CompiledCoreHook(BuildHookInterface[Any]):
    """Adds the package `godwit_core` to a wheel."""

    def dependencies(self) -> list[str]:
        """Return what an isolated build installs first: nothing, if it cannot compile anyway."""
        return REQUIREMENTS if _is_wanted() and _has_compiler() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and include the result. Without GODWIT_CORE=compiled a failure leaves a wheel without it."""
        if self.target_name != "wheel" or not _is_wanted():
            return
        self.folder = Path(os.environ.get("GODWIT_CORE_BUILD") or tempfile.mkdtemp(prefix="godwit-core-")).absolute()
        try:
            package = compile_core(self.folder)
        except (Exception, SystemExit) as error:
            if os.environ.get(CORE["VARIABLE"]) == "compiled":
                raise
            self.app.display_warning(f"the core is not compiled, its sources will be interpreted: {error}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include_editable" if version == "editable" else "force_include"][str(package)] = package.name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the compiler left, unless it is kept."""
        if hasattr(self, "folder") and "GODWIT_CORE_BUILD" not in os.environ:
            shutil.rmtree(self.folder, ignore_errors=True)


def _is_wanted() -> bool:
    return os.environ.get(CORE["VARIABLE"]) != "interpreted" and sys.implementation.name == "cpython"


def _has_compiler() -> bool:
    """Return whether there are a C compiler and Python's header files. On Windows only an attempt can tell."""
    command = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "").split()
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return sys.platform == "win32" or (bool(command) and shutil.which(command[0]) is not None and header.exists())


def compile_core(folder: Path) -> Path:
    """Make the package `godwit_core` in a folder, unless it is there and current. Return its path."""
    if not _has_compiler():
        raise RuntimeError("there is no C compiler, or Python's header files are missing")
    package = folder / "godwit_core"
    digest = CORE["source_digest"](PACKAGE) + hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    head = f"DIGEST = {digest!r}\nPYTHON = {sys.implementation.cache_tag!r}\n"
    description = package / "__init__.py"
    if description.exists() and description.read_text().startswith(head):
        return package
    shutil.rmtree(package, ignore_errors=True)
    tree = folder / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    structs = write_tree(tree)
    for module, source in structs.items():
        path = package / f"{module.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    modules = {module: f"{module.replace('.', '/')}.py" for module in structs}
    extensions = [*_translate(tree, folder / "c"), *written_extensions()]
    built = build_extensions(extensions, folder / "objects", package)
    modules |= {module: path.relative_to(package).as_posix() for module, path in built.items()}
    description.write_text(head + f"MODULES = {modules!r}\n")
    return package


# -- splitting --------------------------------------------------------------------------------------------------------


def write_tree(tree: Path) -> dict[str, str]:
    """Write the sources as the compiler shall read them. Return the modules with data classes as they run."""
    paths = CORE["source_files"](PACKAGE)
    parsed = {path: ast.parse(path.read_bytes()) for path in paths}
    names = _moved_classes(list(parsed.values()))
    structs = {}
    for path, content in parsed.items():
        place = tree / path.relative_to(PACKAGE.parent)
        place.parent.mkdir(parents=True, exist_ok=True)
        source = path.read_text(encoding="utf-8")
        classes = [one for one in content.body if isinstance(one, ast.ClassDef)]
        if is_compiled_source(path):
            module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            source = _adapted(source, classes)
            if moved := [one for one in classes if one.name in names]:
                split = ModuleSplit(module, source, content, moved)
                source = split.compiled
                path_of_structs = place.with_name(f"{place.stem}{CORE['STRUCTS']}.py")
                path_of_structs.write_text(split.read_by_compiler, encoding="utf-8")
                structs[module + CORE["STRUCTS"]] = split.interpreted
        place.write_text(source, encoding="utf-8")
    (tree / "godwit" / "__init__.py").write_text("")
    return structs


def is_compiled_source(path: Path) -> bool:
    """Return whether the module of a source is compiled."""
    place = path.relative_to(PACKAGE)
    return place.as_posix() in CORE["MODULES"] or (
        path.name != "__init__.py"
        and place.parent.as_posix() in CORE["PACKAGES"]
        and place.as_posix() not in CORE["INTERPRETED"] + CORE["WRITTEN_IN_C"]
    )


def _adapted(source: str, classes: list[ast.ClassDef]) -> str:
    """Return a source with two changes for the compiler, made in empty lines so that line numbers stay the same.

    Classes that interpreted classes inherit from get its mark. A dataclass gets the constructor that the decorator
    would make: mypyc evaluates the types of its fields too early.
    """
    lines = source.splitlines()
    for node in classes:
        first = _first_line(node)
        if node.name in SUBCLASSED:
            lines[first - 3] = "if TYPE_CHECKING: from mypy_extensions import mypyc_attr"
            lines[first - 2] = "@mypyc_attr(allow_interpreted_subclasses=True)"
        elif _is_dataclass(node):
            lines[first - 1] = ""
            place = _after_fields(node)
            assert not lines[place], f"line {place + 1} is not empty: {lines[place]}"
            lines[place] = f"    {_constructor(node)}"
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and _is_set_later(one):
                    lines[one.lineno - 1] = lines[one.lineno - 1].replace(" = field(init=False)", "")
    future = "from __future__ import annotations"
    return "\n".join(lines).replace(future, f"{future}; from typing import TYPE_CHECKING", 1) + "\n"


def _is_dataclass(node: ast.ClassDef) -> bool:
    """Return whether a class is decorated by `@dataclass(eq=False)`, so that it has a made constructor and no more."""
    return any(ast.unparse(mark) == "dataclass(eq=False)" for mark in node.decorator_list)


def _after_fields(node: ast.ClassDef) -> int:
    """Return the index of the line after the last field and its docstring."""
    last = max(place for place, one in enumerate(node.body) if isinstance(one, ast.AnnAssign))
    if len(node.body) > last + 1 and isinstance(node.body[last + 1], ast.Expr):
        last += 1
    return node.body[last].end_lineno or 0


def _is_set_later(field: ast.AnnAssign) -> bool:
    return field.value is not None and ast.unparse(field.value) == "field(init=False)"


def _constructor(node: ast.ClassDef) -> str:
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and not _is_set_later(one)]
    parameters = "".join(f", {ast.unparse(one)}" for one in fields)
    names = [ast.unparse(one.target) for one in fields]
    statements = [f"self.{name} = {name}" for name in names]
    if any(isinstance(one, ast.FunctionDef) and one.name == "__post_init__" for one in node.body):
        statements.append("self.__post_init__()")
    return f"def __init__(self{parameters}) -> None: {'; '.join(statements)}"


def _moved_classes(modules: list[ast.Module]) -> set[str]:
    """Return the names of all classes that cannot be compiled. No two classes of the project have the same name."""
    names = {"Struct", "NamedTuple", "bytes", "deque", "dict", "int", "list", "set", "str", "tuple"}
    classes = [one for module in modules for one in module.body if isinstance(one, ast.ClassDef)]
    count = 0
    while count != len(names):
        count = len(names)
        names |= {one.name for one in classes if any(_name(base) in names for base in one.bases)}
    return names | {
        one.name for one in classes if (one.decorator_list and not _is_dataclass(one)) or _has_weak_references(one)
    }


def _has_weak_references(node: ast.ClassDef) -> bool:
    return any(isinstance(one, ast.Constant) and one.value == "__weakref__" for one in ast.walk(node))


def _name(expression: ast.expr) -> str:
    """Return the last part of a dotted name: `Struct` of `msgspec.Struct`."""
    if isinstance(expression, ast.Call):
        return _name(expression.func)
    if isinstance(expression, ast.Subscript):
        return _name(expression.value)
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


class ModuleSplit:
    """A module without its data classes, and its data classes alone: as they run, and as the compiler reads them."""

    def __init__(self, module: str, source: str, content: ast.Module, classes: list[ast.ClassDef]) -> None:
        lines = source.splitlines()
        imports = [one for one in content.body if isinstance(one, ast.Import | ast.ImportFrom) or _is_for_types(one)]
        texts = [lines[_first_line(one) - 1 : one.end_lineno] for one in classes]
        moved = {one.name for one in classes}
        used = {one.id for node in classes for one in ast.walk(node) if isinstance(one, ast.Name)}
        own = _defined_names(content) & used - moved
        import_lines = [line for one in imports for line in lines[one.lineno - 1 : one.end_lineno]]
        own_lines = [f"from {module} import {', '.join(sorted(own))}"] if own else []
        self.read_by_compiler = "\n".join(
            ["# mypy: ignore-errors", *import_lines, *own_lines, *(line for text in texts for line in text), ""]
        )  # `make check` has checked the types; here a cycle of imports can leave the type of a default value open
        functions = ["from __future__ import annotations"]
        for node, text in zip(classes, texts, strict=True):
            functions.append(f"def {CORE['DEFINE']}{node.name}():\n    global {node.name}")
            functions.append(textwrap.indent("\n".join(text), "    "))
        self.interpreted = "\n".join(functions) + "\n"
        for node in classes:  # line numbers stay the same
            first = _first_line(node)
            lines[first - 1 : node.end_lineno] = [""] * ((node.end_lineno or first) - first + 1)
            lines[first - 1] = f"from {module}{CORE['STRUCTS']} import {node.name} as {node.name}"
        self.compiled = "\n".join(lines) + "\n"


def _first_line(node: ast.ClassDef) -> int:
    return min([node.lineno, *(mark.lineno for mark in node.decorator_list)])


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING"


def _defined_names(content: ast.Module) -> set[str]:
    """Return the names that a module defines at its top level, without imported ones."""
    names = set()
    for node in content.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        for target in [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", []):
            names |= {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
    return names


# -- compiling --------------------------------------------------------------------------------------------------------


def _translate(tree: Path, folder: Path) -> list[Any]:
    """Translate the modules to C. mypyc derives the names of modules from paths below the present folder."""
    from mypyc.build import mypycify

    files = [
        str(path.relative_to(PACKAGE.parent)) for path in CORE["source_files"](PACKAGE) if is_compiled_source(path)
    ]
    options = ["--strict", "--explicit-package-bases", "--config-file", "", "--cache-dir", str(folder / "mypy")]
    before = Path.cwd()
    os.chdir(tree)
    try:
        return mypycify(
            [*options, *files],
            opt_level=OPTIMIZATION,
            debug_level="0",
            group_name=CORE["LIBRARY"].removesuffix("__mypyc"),
            multi_file=True,
            strict_dunder_typing=True,
            target_dir=str(folder),
        )
    finally:
        os.chdir(before)


def written_extensions() -> list[Any]:
    """Return the modules that are written in C, each with the functions of the Python module of the same name."""
    from distutils.extension import Extension

    files = CORE["c_files"](PACKAGE)
    return [Extension(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts), [str(path)]) for path in files]


def build_extensions(extensions: list[Any], objects: Path, target: Path) -> dict[str, Path]:
    """Compile C on all processors and link it. Return the files of the extension modules by their names."""
    from distutils.ccompiler import new_compiler
    from distutils.sysconfig import customize_compiler

    compiler: Any = new_compiler()
    customize_compiler(compiler)
    headers = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(objects.parent.glob("c/*.h"))))

    def compile_one(extension: Any, source: str) -> str:
        options = [option for option in extension.extra_compile_args if option != "-Werror"]
        key = headers.copy()
        key.update(f"{sys.version} {compiler.compiler_type} {options} {extension.name}".encode())
        key.update(Path(source).read_bytes())
        folder = objects / key.hexdigest()[:24]  # objects of unchanged C are used again
        if not any(folder.rglob("*.o*")):
            includes = [*extension.include_dirs, sysconfig.get_path("include")]
            compiler.compile([source], output_dir=str(folder), include_dirs=includes, extra_postargs=options)
        return str(next(folder.rglob("*.o*")))

    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [(one, [pool.submit(compile_one, one, source) for source in one.sources]) for one in extensions]
        for extension, compiled in running:
            path = target / (extension.name.replace(".", "/") + suffix)
            path.parent.mkdir(parents=True, exist_ok=True)
            compiler.link_shared_object([one.result() for one in compiled], str(path))
            built[extension.name] = path
    return built


if __name__ == "__main__":  # --check: the exit code tells whether there is a compiler
    if sys.argv[1] == "--check":
        sys.exit(not _has_compiler())
    print(compile_core(Path(sys.argv[1]).resolve()))
