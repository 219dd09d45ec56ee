"""Godwit moves messages and work over plain UDP datagrams and loses none."""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    """Look the version up when it is asked for: every layer imports this module, so it imports nothing itself."""
    if name == "__version__":
        from importlib.metadata import version

        return version("godwit")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
