"""The compiled core: extension modules that mypyc made of this package's own sources, used in place of them.

They are in the package `godwit_core`, which a wheel carries beside `godwit` and `make setup` puts into the environment.
It records a digest of the sources that it was made of. If the present sources differ, or the package is missing, the
sources are interpreted; so an edited source is always the one that runs. The environment variable GODWIT_CORE chooses:

    interpreted     run the sources, for debuggers, profilers and coverage
    compiled        raise ImportError if the compiled core is absent or was made of other sources
    (unset)         the compiled core if it can be used, else the sources

`hatch_build.py` makes the package, and reads the constants below.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

PACKAGES: Final = ("wire", "transport", "broker", "broker/jobs", "native", "mqtt", "server", "client")
"""The packages of `godwit` whose modules are compiled."""
MODULES: Final = ("net/driver.py", "net/udp.py")
"""Single modules of other packages that are compiled, too: they run for every datagram."""
WRITTEN_IN_C: Final = ("wire/bulk.py",)
"""Modules of these packages whose compiled form is not made of them: it is the file of the same name that ends in
`.c`."""
INTERPRETED: Final = (
    "broker/settings.py",
    "client/config.py",
    "client/properties.py",
    "server/archive_pipe.py",
    "server/cluster_configuration.py",
    "server/configuration.py",
    "server/configuration_errors.py",
    "server/configuration_values.py",
    "transport/config.py",
)
"""Modules of these packages that are not compiled: they run at the start, or check the arguments of programs."""
READ: Final = ("errors.py", "limits.py", "net/address.py", "store/*.py")
"""Interpreted modules that compiled ones import: the compiler has read their types and constants."""
LIBRARY: Final = "godwit__mypyc"
"""The extension module with the code of all others; the name follows from the group name `godwit` of mypyc."""
STRUCTS: Final = "__structs"
"""The end of the name of a module with the data classes of a compiled one."""
DEFINE: Final = "_define_"
"""The beginning of the names of functions that define one data class each."""
VARIABLE: Final = "GODWIT_CORE"


def source_files(package: Path) -> list[Path]:
    """Return the sources in the folder of `godwit` that the compiled core depends on."""
    patterns = (*(f"{folder}/*.py" for folder in PACKAGES), *MODULES, *READ)
    return list(dict.fromkeys(path for pattern in patterns for path in sorted(package.glob(pattern))))


def c_files(package: Path) -> list[Path]:
    """Return the sources in C."""
    return [package / path.replace(".py", ".c") for path in WRITTEN_IN_C]


def source_digest(package: Path) -> str:
    """Return a digest of these sources. Raises OSError if there are no sources."""
    from hashlib import blake2b

    digest = blake2b(digest_size=16)
    for path in [*source_files(package), *c_files(package)]:
        source = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(source)}\n".encode() + source)
    return digest.hexdigest()


class StructLoader(SourceFileLoader):
    """Loads a module with data classes: each is defined when it is imported, in the namespace of the compiled module.

    Their methods and the types of their fields use names of that module, so they are looked up there.
    """

    def exec_module(self, module: ModuleType) -> None:
        """Prepare the definitions; the compiled module's own code imports the classes one by one."""
        namespace = sys.modules[module.__name__.removesuffix(STRUCTS)].__dict__
        code = self.get_code(module.__name__)
        assert code is not None
        exec(code, namespace)

        def define(name: str) -> Any:
            if name not in namespace:
                if DEFINE + name not in namespace:
                    raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
                namespace.pop(DEFINE + name)()
            return namespace[name]

        module.__getattr__ = define  # type: ignore[method-assign]


class CoreFinder(MetaPathFinder):
    """Finds the compiled modules. It looks for them when the first module of the core is imported."""

    def __init__(self) -> None:
        self._folder = Path()
        self._files: dict[str, str] | None = None
        """Files by names of modules; None before the first import, empty if the sources are interpreted."""
        self.why_interpreted = ""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Return the spec of a compiled module; None for any other module."""
        if not fullname.startswith(("godwit.", LIBRARY)):
            return None
        file = self.files().get(fullname)
        if file is None:
            return None
        location = str(self._folder / file)
        loader = StructLoader if fullname.endswith(STRUCTS) else ExtensionFileLoader
        return spec_from_file_location(fullname, location, loader=loader(fullname, location))

    def files(self) -> dict[str, str]:
        """Return the files of compiled modules. Raises ImportError if GODWIT_CORE demands them and there are none."""
        if self._files is None:
            self.why_interpreted, core = _usable_core()
            if core is not None:
                self._folder = Path(core.__path__[0])
                self._files = core.MODULES
            elif os.environ.get(VARIABLE) == "compiled":
                raise ImportError(f"{VARIABLE} is compiled, but {self.why_interpreted}")
            else:
                self._files = {}
        return self._files


def _usable_core() -> tuple[str, Any]:
    """Return the package of the compiled core, or the reason why it is not used."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "interpreted":
        return f"{VARIABLE} is interpreted", None
    if wanted not in ("", "compiled"):
        raise ImportError(f"{VARIABLE} is {wanted!r}; it can be interpreted or compiled")
    try:
        import godwit_core
    except ImportError:
        return "the compiled core is not installed", None
    if sys.implementation.cache_tag != godwit_core.PYTHON:
        return "the compiled core is for another Python", None
    try:
        is_current = godwit_core.DIGEST.startswith(source_digest(Path(__file__).parent))
    except OSError:
        is_current = False
    return ("", godwit_core) if is_current else ("the compiled core was made of other sources", None)


_finder: Final = CoreFinder()


def install() -> None:
    """Let imports of the core's modules find the compiled ones, from now on."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def describe_form() -> str:
    """Return in which form the core runs: `compiled`, or `interpreted` with the reason."""
    return "compiled" if _finder.files() else f"interpreted ({_finder.why_interpreted})"


def is_compiled(module: str) -> bool:
    """Return whether a module, by its name, is one of the core's and runs compiled."""
    return module in _finder.files()
