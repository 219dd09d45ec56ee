"""A request that cannot be done: becomes an error reply to the one who asked."""

from __future__ import annotations

from godwit.wire.control_base import Code


class RequestFailure(Exception):  # noqa: N818  # not an error of the broker: its answer
    """With the code and the text of the reply."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
