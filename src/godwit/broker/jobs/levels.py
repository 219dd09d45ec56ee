"""What is fair between controllers."""

from __future__ import annotations


class Level:
    """What is fair between the controllers of one priority: start-time fair queueing.

    A job's tag is the larger of the level's time and its controller's last tag, plus its number of tasks. The level's
    time is the tag of the job that was leased from last. So who submits a thousand jobs is behind all who submit one.
    """

    __slots__ = ("_tags", "time")

    def __init__(self) -> None:
        self.time = 0
        self._tags: dict[str, list[int]] = {}
        """Of each controller with jobs that have not ended: the last tag, and how many they are."""

    def tag(self, controller: str, tasks: int) -> int:
        last = self._tags.get(controller)
        if last is None:
            last = self._tags[controller] = [0, 0]
        tag = last[0] = max(last[0], self.time) + tasks
        last[1] += 1
        return tag

    def end(self, controller: str) -> None:
        """One of its jobs has ended."""
        last = self._tags[controller]
        last[1] -= 1
        if not last[1]:
            del self._tags[controller]
