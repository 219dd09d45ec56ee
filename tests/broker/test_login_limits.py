"""Failed logins slow down by name and by host, with bounded memory; a host may have a rate of logins."""

from __future__ import annotations

import sys
from typing import Any

from tests.broker.world import Peer, World

from godwit.broker.access import Access
from godwit.broker.login_limits import LoginLimits
from godwit.broker.settings import Settings
from godwit.limits import (
    FAILED_LOGINS_PER_HOST,
    FAILED_LOGINS_PER_HOST_S,
    FAILED_LOGINS_PER_NAME,
    FAILED_LOGINS_PER_NAME_S,
    MAX_LOGIN_BUCKETS,
)
from godwit.wire.control_base import Code

SECRET = b"0123456789abcdef"
NAMES = {f"client-{n}": SECRET for n in range(50)}


def world(**settings: object) -> World:
    return World(Settings(access=Access(secrets=NAMES, allows_anonymous=False), **settings))  # type: ignore[arg-type]


def attempt(world: World, name: str, host: str, secret: bytes = b"") -> Code | None:
    peer: Peer = world.peer(host)
    if secret:
        peer.login(name, secret=secret)
    else:
        peer.try_login(name, proof=b"x" * 32)
    return None if peer.closed is None else Code(peer.closed[0])


def test_wrong_proofs_of_a_name_slow_down_whatever_their_host() -> None:
    for name in ("client-1", "unlisted"):  # a limit for listed names only would reveal them
        here = world()
        for number in range(int(FAILED_LOGINS_PER_NAME)):
            assert attempt(here, name, f"192.0.2.{number}") is Code.NOT_ALLOWED
        assert attempt(here, name, "198.51.100.1") is Code.BUSY
        assert here.told("refused")[-1].endswith(
            f"too many failed logins under the name '{name}': 6 a minute are checked"
        )
        assert attempt(here, "client-2", "192.0.2.1") is Code.NOT_ALLOWED, "another name is not concerned"
        here.pass_s(1 / FAILED_LOGINS_PER_NAME_S + 0.1)
        assert attempt(here, name, "198.51.100.1") is Code.NOT_ALLOWED
        assert attempt(here, name, "198.51.100.1") is Code.BUSY, "one attempt after each pause"


def test_wrong_proofs_from_a_host_slow_down_whatever_their_name() -> None:
    here = world()
    for number in range(int(FAILED_LOGINS_PER_HOST)):
        assert attempt(here, f"client-{number}", f"2001:db8::{number:x}") is Code.NOT_ALLOWED
    assert attempt(here, "client-49", "2001:db8::ffff") is Code.BUSY, "a /64 is one host"
    assert "too many failed logins from 2001:db8::/64" in here.told("refused")[-1]
    assert attempt(here, "client-49", "2001:db8:0:1::1") is Code.NOT_ALLOWED
    here.pass_s(1 / FAILED_LOGINS_PER_HOST_S + 0.1)
    assert attempt(here, "client-49", "2001:db8::ffff") is Code.NOT_ALLOWED


def test_a_right_proof_is_not_checked_either_while_it_must_wait() -> None:
    here = world()
    for _ in range(int(FAILED_LOGINS_PER_NAME)):
        attempt(here, "client-1", "192.0.2.1")
    peer = here.peer("192.0.2.9")
    before = here.server.broker.sessions.get("client-1")
    peer.try_login("client-1", proof=b"right or wrong")
    assert peer.closed is not None
    assert peer.closed[0] == Code.BUSY
    assert before is None


def test_others_do_not_keep_a_client_out_by_failing_under_its_name() -> None:
    here = world()
    assert attempt(here, "client-1", "192.0.2.1", SECRET) is None
    for _ in range(2 * int(FAILED_LOGINS_PER_NAME)):
        attempt(here, "client-1", "203.0.113.9")
    assert attempt(here, "client-1", "203.0.113.9") is Code.BUSY
    assert attempt(here, "client-1", "192.0.2.1", SECRET) is None
    assert attempt(here, "client-1", "192.0.2.1") is Code.NOT_ALLOWED
    assert attempt(here, "client-1", "192.0.2.1") is Code.BUSY, "its host has failed too, and is limited as all are"


def test_a_client_with_an_old_secret_does_not_lock_out_its_network() -> None:
    """It is limited by its name to fewer failures than its host may have."""
    here = world()
    for _ in range(300):
        attempt(here, "client-1", "192.0.2.1")
        here.pass_s(1.0)
    assert attempt(here, "client-2", "192.0.2.1", SECRET) is None


def test_a_rate_of_logins_for_each_host() -> None:
    here = world(host_logins_per_s=0.5)
    for number in range(5):
        assert attempt(here, f"client-{number}", "192.0.2.1", SECRET) is None
    assert attempt(here, "client-6", "192.0.2.1") is Code.BUSY
    assert here.told("refused")[-1].endswith(
        "may have 0.5 logins per second (limits.host_logins_per_s): try again later"
    )
    assert attempt(here, "client-6", "192.0.2.2", SECRET) is None
    here.pass_s(2.1)
    assert attempt(here, "client-7", "192.0.2.1", SECRET) is None


def test_memory_is_bounded() -> None:
    limits = LoginLimits()
    for number in range(3 * MAX_LOGIN_BUCKETS):
        limits.add_failure(f"name-{number}", f"host-{number}", number)
        limits.add_success(f"name-{number}", f"host-{number}")
        limits.admit(f"host-{number}", 1.0, number)
    tables: list[dict[str, Any]] = [limits._names, limits._hosts, limits._proved_from, limits._logins]
    assert [len(table) for table in tables] == [MAX_LOGIN_BUCKETS] * 4
    assert sum(map(sys.getsizeof, tables)) < 16 * 2**20
    assert limits.admit("host-1", 2.0, 0), "another rate begins anew"
