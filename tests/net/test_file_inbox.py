"""Chunks become files, whatever the headers claim; after an interruption they are resumed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from godwit.client.files import PART_PATTERN, FileHeader, file_id, part_name
from godwit.errors import FileTransferError
from godwit.net.file_inbox import (
    FILE_COST_BYTES,
    ChunkOutcome,
    FileInbox,
    FileProblem,
    PartialFile,
    ReceivedFile,
)

TOPIC = "plant/drawings"


class Sender:
    """A file on the way."""

    def __init__(self, content: bytes, name: str = "a.pdf", *, run: int = 1, publisher: str = "file-1") -> None:
        self.content = content
        self.name = name
        self.run = run
        self.publisher = publisher
        self.sha256 = hashlib.sha256(content).digest()
        self.size = len(content)

    def header(self, at: int) -> FileHeader:
        id_ = file_id(self.sha256, self.name, TOPIC)
        return FileHeader(id=id_, run=self.run, name=self.name, size=self.size, at=at, sha256=self.sha256)

    def send(self, inbox: FileInbox, at: int, stop: int) -> ChunkOutcome:
        return inbox.add(TOPIC, self.publisher, self.header(at), self.content[at:stop])

    def send_all(self, inbox: FileInbox) -> ReceivedFile:
        outcome = self.send(inbox, 0, self.size)
        assert isinstance(outcome, ReceivedFile)
        return outcome


def parts(folder: Path) -> list[Path]:
    return list(folder.glob(PART_PATTERN))


def test_chunks_become_a_file(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path / "deep" / "inbox")
    sender = Sender(b"0123456789")
    assert sender.send(inbox, 0, 4) == PartialFile("a.pdf", 4, 10)
    assert inbox.parts == 1
    assert sender.send(inbox, 4, 8) == PartialFile("a.pdf", 8, 10)
    outcome = sender.send(inbox, 8, 10)
    path = tmp_path / "deep" / "inbox" / "a.pdf"
    assert outcome == ReceivedFile(path, "a.pdf", TOPIC, "file-1", 10, sender.sha256)
    assert path.read_bytes() == b"0123456789"
    assert inbox.parts == 0
    assert list(path.parent.iterdir()) == [path]


def test_an_empty_file_arrives_too(tmp_path: Path) -> None:
    received = Sender(b"").send_all(FileInbox(tmp_path))
    assert received.path.read_bytes() == b""


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path)
    (tmp_path / "a.pdf").write_text("mine")
    (tmp_path / "a (1).pdf").symlink_to(tmp_path / "nowhere")
    assert Sender(b"one").send_all(inbox).path.name == "a (2).pdf"
    assert Sender(b"two").send_all(inbox).path.name == "a (3).pdf"
    assert (tmp_path / "a.pdf").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_repeated_chunks_change_nothing(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path)
    sender = Sender(b"0123456789")
    sender.send(inbox, 0, 4)
    assert sender.send(inbox, 0, 4) is None
    assert sender.send(inbox, 2, 7) == PartialFile("a.pdf", 7, 10)
    assert isinstance(sender.send(inbox, 4, 10), ReceivedFile)
    assert (tmp_path / "a.pdf").read_bytes() == b"0123456789"


def test_a_new_program_goes_on_with_what_is_there(tmp_path: Path) -> None:
    sender = Sender(bytes(range(256)) * 10)
    sender.send(FileInbox(tmp_path), 0, 1000)
    inbox = FileInbox(tmp_path)
    assert inbox.parts == 1
    assert sender.send(inbox, 900, 1200) == PartialFile("a.pdf", 1200, 2560)
    inbox = FileInbox(tmp_path)
    again = Sender(sender.content, run=2)  # sent again from the beginning: only the rest is written
    assert again.send(inbox, 0, 1200) is None
    assert isinstance(again.send(inbox, 1200, 2560), ReceivedFile)
    assert (tmp_path / "a.pdf").read_bytes() == sender.content


def test_a_file_whose_beginning_was_missed_is_reported_once(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path)
    sender = Sender(b"0123456789")
    problem = sender.send(inbox, 4, 8)
    assert isinstance(problem, FileProblem)
    assert "a.pdf: bytes 0 to 4 are missing" in problem.text
    assert sender.send(inbox, 8, 10) is None
    assert inbox.parts == 0
    assert not list(tmp_path.iterdir())
    assert sender.send_all(inbox).path.name == "a.pdf"


def test_a_gap_keeps_what_is_there_for_the_next_run(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path)
    sender = Sender(b"0123456789")
    sender.send(inbox, 0, 4)
    assert isinstance(sender.send(inbox, 8, 10), FileProblem)
    assert sender.send_all(inbox).path.read_bytes() == b"0123456789"


def test_damage_is_found_and_the_next_run_repairs_it(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path)
    sender = Sender(b"0123456789")
    sender.content = b"0123x56789"
    problem = sender.send(inbox, 0, 10)
    assert isinstance(problem, FileProblem)
    assert "damaged" in problem.text
    assert not list(tmp_path.iterdir())
    assert Sender(b"0123456789", run=2).send_all(inbox).path.name == "a.pdf"


def test_a_damaged_part_of_an_earlier_program_is_found(tmp_path: Path) -> None:
    sender = Sender(b"0123456789")
    sender.send(FileInbox(tmp_path), 0, 4)
    (part,) = parts(tmp_path)
    part.write_bytes(b"xxxx")
    inbox = FileInbox(tmp_path)
    assert isinstance(sender.send(inbox, 4, 10), FileProblem)
    assert sender.send_all(inbox).path.name == "a.pdf"


def test_a_part_longer_than_the_file_is_not_its_beginning(tmp_path: Path) -> None:
    sender = Sender(b"0123456789")
    (tmp_path / part_name(TOPIC, sender.header(0).id, sender.header(0).size)).write_bytes(b"x" * 11)
    assert sender.send_all(FileInbox(tmp_path)).path.read_bytes() == b"0123456789"


def test_a_deleted_part_is_reported_and_can_be_sent_again(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path)
    sender = Sender(b"0123456789")
    sender.send(inbox, 0, 4)
    (part,) = parts(tmp_path)
    part.unlink()
    problem = sender.send(inbox, 4, 8)
    assert isinstance(problem, FileProblem)
    assert "removed" in problem.text
    sender.send(inbox, 0, 4)
    part.write_bytes(b"")  # or was cut
    assert isinstance(sender.send(inbox, 4, 8), FileProblem)
    assert sender.send_all(inbox).path.read_bytes() == b"0123456789"


def test_a_part_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    folder = tmp_path / "inbox"
    folder.mkdir()
    sender = Sender(b"0123456789")
    (folder / part_name(TOPIC, sender.header(0).id, sender.header(0).size)).symlink_to(outside)
    assert sender.send_all(FileInbox(folder)).path.read_bytes() == b"0123456789"
    inbox = FileInbox(folder)
    (folder / part_name(TOPIC, sender.header(0).id, sender.header(0).size)).symlink_to(outside)
    with pytest.raises(FileTransferError, match="cannot keep"):
        sender.send(inbox, 0, 4)
    assert outside.read_bytes() == b"mine"


def test_a_part_that_is_gone_when_it_is_needed_begins_anew(tmp_path: Path) -> None:
    sender = Sender(b"0123456789")
    sender.send(FileInbox(tmp_path), 0, 4)
    inbox = FileInbox(tmp_path)
    parts(tmp_path)[0].unlink()
    assert sender.send_all(inbox).path.read_bytes() == b"0123456789"


def test_a_claimed_size_costs_nothing(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, max_file_bytes=2**40)
    sender = Sender(b"0123456789")
    sender.size = 2**40
    assert sender.send(inbox, 0, 4) == PartialFile("a.pdf", 4, 2**40)
    (part,) = parts(tmp_path)
    assert part.stat().st_size == 4
    sender.size = 2**40 + 1
    problem = sender.send(inbox, 4, 8)
    assert isinstance(problem, FileProblem)
    assert "at most 1,099,511,627,776 are allowed for a file; raise the limit" in problem.text


def test_all_files_together_are_bounded(tmp_path: Path) -> None:
    limit = 3 * (FILE_COST_BYTES + 10)
    inbox = FileInbox(tmp_path, max_total_bytes=limit)
    files = [Sender(b"0123456789", f"{n}.pdf") for n in range(4)]
    done = [sender.send_all(inbox) for sender in files[:2]]
    assert isinstance(files[2].send(inbox, 0, 9), PartialFile)
    for _ in range(2):
        with pytest.raises(FileTransferError, match=r"cannot keep 3.pdf in .*: received files and parts .* limit of"):
            files[3].send(inbox, 0, 1)
    assert len(parts(tmp_path)) == 1
    assert isinstance(files[2].send(inbox, 9, 10), ReceivedFile)
    done[0].path.unlink()  # the program has used it
    assert isinstance(files[3].send(inbox, 0, 1), PartialFile)
    with pytest.raises(FileTransferError, match="move files away or raise the limit, and start again"):
        Sender(b"", "empty.pdf").send(inbox, 0, 0)
    again = FileInbox(tmp_path, max_total_bytes=FILE_COST_BYTES + 5)  # files of before are not its own, but parts are
    with pytest.raises(FileTransferError, match="would exceed the limit"):
        files[3].send(again, 1, 10)
    assert isinstance(files[3].send(again, 1, 5), PartialFile)
    assert isinstance(files[3].send(FileInbox(tmp_path), 5, 10), ReceivedFile)


def test_a_sender_that_claims_another_size_does_no_damage(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path)
    sender = Sender(b"0123456789")
    sender.send(inbox, 0, 4)
    sender.size = 5
    problem = sender.send(inbox, 4, 5)
    assert isinstance(problem, FileProblem)
    assert "are missing" in problem.text
    sender.size = 10
    assert isinstance(sender.send(inbox, 4, 10), ReceivedFile)


def test_the_longest_idle_part_gives_way(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, max_parts=3)
    senders = [Sender(b"0123456789", f"{n}.pdf") for n in range(4)]
    for sender in senders[:3]:
        sender.send(inbox, 0, 4)
    senders[0].send(inbox, 4, 5)
    problem = senders[3].send(inbox, 0, 4)
    assert isinstance(problem, FileProblem)
    assert "longest idle" in problem.text
    assert inbox.parts == len(parts(tmp_path)) == 3
    assert isinstance(senders[0].send(inbox, 5, 10), ReceivedFile)
    assert isinstance(senders[1].send(inbox, 4, 10), FileProblem)


def test_complaints_are_remembered_for_few(tmp_path: Path) -> None:
    inbox = FileInbox(tmp_path, max_parts=2)
    for n in range(10):
        assert isinstance(Sender(b"0123456789", f"{n}.pdf").send(inbox, 4, 8), FileProblem)
    assert Sender(b"0123456789", "9.pdf").send(inbox, 4, 8) is None
    assert isinstance(Sender(b"0123456789", "0.pdf").send(inbox, 4, 8), FileProblem)


def test_a_path_from_the_network_stays_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "inbox"
    received = Sender(b"x", "../../../evil.txt").send_all(FileInbox(folder))
    assert received.path == folder / "evil.txt"
    assert received.name == "../../../evil.txt"


def test_a_disk_that_refuses_is_a_kind_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(FileTransferError, match="cannot use the folder"):
        FileInbox(blocked)
    inbox = FileInbox(tmp_path / "inbox")
    inbox.folder.rmdir()
    with pytest.raises(FileTransferError, match=r"cannot keep a.pdf in .* start again"):
        Sender(b"0123456789").send(inbox, 0, 4)
