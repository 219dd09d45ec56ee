"""The topics of a broker as a tree, in pages. It is read anew while a page shows it, but never all the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, TypeVar

import msgspec

import godwit

MIN_AGE_S: Final = 2.0
DUTY: Final = 10
"""The pause between two readings is at least this many times as long as a reading took."""
MAX_ROWS: Final = 200
"""Rows of one page."""
T = TypeVar("T")


class TreeNode:
    """A topic, or levels that topics have in common."""

    __slots__ = ("children", "info", "label", "messages", "path", "rate", "topics")

    def __init__(self, path: str, label: str) -> None:
        self.path = path
        self.label = label
        self.info: godwit.TopicInfo | None = None
        self.children: dict[str, TreeNode] = {}
        self.topics = 0
        """Topics below it, with itself."""
        self.messages = 0
        self.rate = 0.0

    def row(self, level: int, is_open: bool) -> dict[str, Any]:
        """Return the row of a table."""
        info = self.info
        found: dict[str, Any] = {
            "path": self.path,
            "label": self.label,
            "level": level,
            "open": is_open,
            "children": len(self.children),
            "topics": self.topics,
            "messages": self.messages,
            "rate": round(self.rate, 3),
        }
        if info is not None:
            found["topic"] = msgspec.to_builtins(info)
        return found


class TopicCatalogue:
    """The topics that a client may see, with their rates."""

    def __init__(self, read: Callable[[], Awaitable[list[godwit.TopicInfo]]]) -> None:
        """`read` requests the topics."""
        self._read = read
        self._infos: list[godwit.TopicInfo] = []
        self._rates: dict[str, float] = {}
        self._root = TreeNode("", "")
        self._read_at: float | None = None
        self._took_s = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Read the topics, unless they were read a moment ago. All callers share one reading."""
        if self._reading is None or self._reading.done():
            age_s = float("inf") if self._read_at is None else time.monotonic() - self._read_at
            if age_s < max(MIN_AGE_S, DUTY * self._took_s):
                return
            self._reading = asyncio.get_running_loop().create_task(self._load())
            if self._read_at is not None and len(self._infos) > MAX_ROWS:
                return  # the former ones are shown meanwhile
        await asyncio.shield(self._reading)

    async def _load(self) -> None:
        began = time.monotonic()
        infos = await self._read()
        now = time.monotonic()
        if self._read_at is not None and now > self._read_at:
            former = {info.name: info.messages for info in self._infos}
            elapsed_s = now - self._read_at
            self._rates = {
                info.name: max(info.messages - former.get(info.name, info.messages), 0) / elapsed_s for info in infos
            }
        self._took_s, self._read_at, self._infos = now - began, now, infos
        self._root = self._build()

    def _build(self) -> TreeNode:
        root = TreeNode("", "")
        for info in self._infos:
            rate = self._rates.get(info.name, 0.0)
            node = root
            path = ""
            for depth, label in enumerate(info.name.split("/")):
                path = label if depth == 0 else f"{path}/{label}"
                node = node.children.setdefault(label, TreeNode(path, label))
                node.topics += 1
                node.messages += info.messages
                node.rate += rate
            node.info = info
        root.topics = len(self._infos)
        return root

    def rate_of(self, topic: str) -> float:
        """Return the messages per second of a topic."""
        return self._rates.get(topic, 0.0)

    def page(self, opened: Collection[str], search: str, sort: str, offset: int, limit: int) -> dict[str, Any]:
        """Return rows of the table: the tree with these nodes open, or the topics that contain a text.

        Args:
            opened: Paths of the open nodes.
            search: Show topics with this text in their names, without the tree.
            sort: name, rate or messages.
            offset: The first row.
            limit: The number of rows, at most MAX_ROWS.
        """
        limit = min(max(limit, 1), MAX_ROWS)
        rows: list[dict[str, Any]] = []
        total = 0
        if search:
            wanted = search.casefold()
            names = [info for info in self._infos if wanted in info.name.casefold()]
            if sort != "name":
                names.sort(key=lambda info: -(self.rate_of(info.name) if sort == "rate" else info.messages))
            total = len(names)
            for info in names[offset : offset + limit]:
                node = TreeNode(info.name, info.name)
                node.info, node.topics, node.messages, node.rate = info, 1, info.messages, self.rate_of(info.name)
                rows.append(node.row(0, False))
            return {"total": total, "offset": offset, "rows": rows, "topics": len(self._infos)}
        stack = [(0, node) for node in reversed(self._sorted(self._root, sort))]
        while stack:
            level, node = stack.pop()
            is_open = node.path in opened and bool(node.children)
            if offset <= total < offset + limit:
                rows.append(node.row(level, is_open))
            total += 1
            if is_open:
                stack += [(level + 1, child) for child in reversed(self._sorted(node, sort))]
        return {"total": total, "offset": offset, "rows": rows, "topics": len(self._infos)}

    def _sorted(self, node: TreeNode, sort: str) -> list[TreeNode]:
        children = list(node.children.values())
        if sort == "rate":
            children.sort(key=lambda child: (-child.rate, child.label))
        elif sort == "messages":
            children.sort(key=lambda child: (-child.messages, child.label))
        return children
