"""The log of a broker that runs: the disk is waited for in two threads, the event loop never waits.

    loop      append, read, locate  --->  writer (godwit.net.log_writer), reader
    loop      work                  <---  their answers, in a queue; `wake` has the loop come and take them

The reader has a connection of its own, so catching up and committing do not wait for each other. It serves clients in
turn, however much each of them asks for, and passes over what nobody waits for any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from godwit.broker.broker import Broker
from godwit.broker.effects import Append, Committed, Failed, Found, Locate, Located, Notice, Read
from godwit.broker.ports import Peer
from godwit.net.fair_queue import FairQueue
from godwit.net.log_writer import Answer, Chore, Job, LogWriter, WritableStore, text_of
from godwit.store.port import Slice
from godwit.wire.changes import State

READS_A_TURN: Final = 4
"""Answers to subscriptions that are behind: then the others have their turn."""
RETRY_S: Final = 1.0
"""A read that failed is tried again after so long, and again: the subscription waits."""
READ_PAUSE_S: Final = 1.0
"""So long a read waits, at most, for the write-ahead log to be cut off. That waits for a moment in which nobody reads,
and where several always do there is none."""

Question: TypeAlias = Read | Locate


class ReadableLog(Protocol):
    """What the reader needs of godwit.store.reader.LogReader."""

    def read(self, offset: int, max_bytes: int) -> Slice: ...
    def offset_at(self, time_us: int) -> int: ...
    def close(self) -> None: ...


class ThreadedLog:
    """See godwit.server.log. It takes over the store and the reader, and closes them; its offsets are the start's."""

    _broker: Broker
    keeps_state: Final = True

    def __init__(
        self,
        store: WritableStore,
        reader: ReadableLog,
        *,
        wake: Callable[[], None],
        tell: Callable[[Notice], None],
        retain: Chore | None = None,
        path: Path | None = None,
    ) -> None:
        """`wake` is called in another thread and has `work` called soon; `tell` is called from within `work`; `path` is
        the log's file."""
        self.log_id = store.log_id
        self.first_offset = store.first_offset
        self.next_offset = store.next_offset
        self.epochs = store.epochs
        self._store = store
        self._wake = wake
        self._tell = tell
        self._is_woken = False
        self._answers: deque[Answer] = deque()
        self._found: deque[Found | Located] = deque()
        self._unanswered: deque[int] = deque()
        """The bytes of each append that is under way."""
        self._held_bytes = 0
        self._era = 0
        """How often the broker has heard that appends failed."""
        self._known_failures = 0
        """Answers that are still to come, and that the broker has had already."""
        self._has_begun = False
        self.writer = LogWriter(store, self._on_answers, retain=retain, path=path)
        self._reader = _Reader(self, reader)

    # -- what the server calls ----------------------------------------------------------------------------------------

    def state(self) -> State:
        return self._store.state()

    def begin(self, broker: Broker) -> None:
        self._broker = broker
        self._has_begun = True
        self.writer.start()
        self._reader.start()

    def append(self, effect: Append, now_us: int) -> None:
        size_bytes = sum([len(entry.rest) for entry in effect.entries])
        self._unanswered.append(size_bytes)
        self._held_bytes += size_bytes
        self.writer.append(Job(effect, size_bytes, self._era))

    def read(self, effect: Read) -> None:
        self._reader.ask(effect)

    def locate(self, effect: Locate, now_us: int) -> None:
        self._reader.ask(effect)

    def work(self, now_us: int) -> None:
        self._is_woken = False  # before looking: what comes from now on wakes the loop again
        # What is missing in those that are there now, the answers say before them. What was deleted since then counts
        # as lost, too, though they still have it: a gap says rather too much than too little.
        found = min(len(self._found), READS_A_TURN)
        answers, broker = self._answers, self._broker
        while answers:
            answer = answers.popleft()
            if isinstance(answer, Committed):
                self._held_bytes -= self._unanswered.popleft()
                broker.handle(answer, now_us)
            elif isinstance(answer, Failed):
                self._on_failed(answer, now_us)
            elif isinstance(answer, Notice):
                self._tell(answer)
            else:
                broker.handle(answer, now_us)
        for _ in range(found):
            broker.handle(self._found.popleft(), now_us)

    def _on_failed(self, answer: Failed, now_us: int) -> None:
        """With it all fail that were given so far: the writer does not try them, see godwit.net.log_writer."""
        if self._known_failures:
            self._known_failures -= 1
            return
        self._era += 1
        failed = len(self._unanswered)
        self._known_failures = failed - 1
        self._unanswered.clear()
        self._held_bytes = 0
        self._broker.handle(answer, now_us)
        for _ in range(failed - 1):
            self._broker.handle(Failed(answer.text), now_us)

    @property
    def due_us(self) -> int | None:
        return 0 if self._found else None

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Has what waits committed and everything closed, without waiting for it."""
        if self._has_begun:
            self._reader.end()
        else:
            self._reader.close()
            self._store.close()

    @property
    def has_ended(self) -> bool:
        return self.join(0)

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the threads to end; whether they have."""
        return not self._has_begun or (self._reader.join(timeout_s) and self.writer.join(timeout_s))

    # -- in the threads -----------------------------------------------------------------------------------------------

    def _on_answers(self, answers: list[Answer]) -> None:
        self._answers.extend(answers)
        self._wake_once()

    def on_found(self, answer: Found | Located) -> None:
        """What the reader's thread has found."""
        self._found.append(answer)
        self._wake_once()

    def on_notice(self, notice: Notice) -> None:
        """What people should know of the reader's thread."""
        self._on_answers([notice])

    def on_reader_ended(self) -> None:
        """Only now the writer ends: who is the last to close the file takes the write-ahead log into it."""
        self.writer.end()

    def _wake_once(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._wake()


class _Reader:
    """Answers one question after the other. One that the disk cannot answer now is asked again, until it can."""

    def __init__(self, log: ThreadedLog, reader: ReadableLog) -> None:
        self._log = log
        self._reader = reader
        self._questions: FairQueue[Question] = FairQueue()
        self._ending = threading.Event()
        self._is_failing = False
        self._has_met_damage = False
        self._thread = threading.Thread(target=self._run, name="godwit-log-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, question: Question) -> None:
        asker = _asker(question)
        if asker is not None:
            self._questions.put(asker, question)

    def end(self) -> None:
        self._ending.set()
        self._questions.end()

    def join(self, timeout_s: float | None) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        self._reader.close()

    def _run(self) -> None:
        try:
            while (question := self._questions.get()) is not None:
                if _asker(question) is not None:
                    self._try(question)
            self.close()
        except Exception as error:  # the writer must be told to end all the same
            self._log.on_notice(Notice("warning", f"the log's reader has ended: {text_of(error)}"))
        finally:
            self._log.on_reader_ended()

    def _try(self, question: Question) -> None:
        try:
            self._log.writer.lets_read.wait(READ_PAUSE_S)
            answer = self._look_up(question)
            self._log.writer.has_told_all.wait()  # what is missing in it because it was deleted is told before it
            self._log.on_found(answer)
        except Exception as error:  # whatever it is, the subscriptions must go on once it is over
            if not self._is_failing:
                self._is_failing = True
                text = f"the log cannot be read, which is tried again: {text_of(error)}"
                self._log.on_notice(Notice("warning", text))
            self.ask(question)
            self._ending.wait(RETRY_S)
        else:
            if self._is_failing:
                self._is_failing = False
                self._log.on_notice(Notice("log", "the log can be read again"))

    def _look_up(self, question: Question) -> Found | Located:
        if isinstance(question, Read):
            found = self._reader.read(question.offset, question.max_bytes)
            if found.damaged and not self._has_met_damage:
                self._has_met_damage = True  # told once: `verify` finds the others
                begin, end = found.damaged[0]
                text = (
                    f"the log is damaged: offsets {begin} to {end - 1} cannot be read, and their subscribers are told. "
                )
                self._log.on_notice(Notice("warning", text + "See what else is with `godwit log verify`"))
            return Found(question, found.entries, found.next_offset, found.damaged)
        return Located(question, self._reader.offset_at(question.time_us))


def _asker(question: Question) -> Peer | None:
    """Return the client that waits for the answer; None if it is no longer needed.

    The reader's thread reads what the loop's thread changes: at worst it looks up something that is discarded then.
    """
    return question.peer
