"""A lease, as the application holds it."""

from __future__ import annotations

from godwit.client.leasing import Lease


def lease() -> Lease:
    return Lease((7, 2, 3), "resize", "boss", b"payload", 4, 2, None, None)


def test_its_numbers_have_names() -> None:
    one = lease()
    assert (one.job, one.task, one.fence) == (7, 2, 3)
    assert one.state == "running"


def test_each_is_itself() -> None:
    one, other = lease(), lease()
    assert one != other
    assert len({one, other}) == 2
    one.state = "ended"
    assert one in {one}
