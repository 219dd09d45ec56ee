"""Limits on logins: wrong proofs slow down further attempts, by name and by host, and hosts may have a rate of logins.

A wrong proof takes a token from the bucket of the claimed name and from that of the host; an attempt that finds one of
them empty is refused before its proof is checked. So guesses are limited to a rate, however many connections make them.
A name counts whether it exists or not, else the limit would reveal which do. A name is not limited for the host that
proved it last: others cannot keep its client out by failing under its name.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from godwit.broker.quotas import Bucket
from godwit.limits import (
    FAILED_LOGINS_PER_HOST,
    FAILED_LOGINS_PER_HOST_S,
    FAILED_LOGINS_PER_NAME,
    FAILED_LOGINS_PER_NAME_S,
    MAX_LOGIN_BUCKETS,
)

LOGIN_BURST_S: Final = 10.0
"""A host may have the logins of this time at once."""


class LoginLimits:
    """Input: add_failure, add_success, admit. All tables are bounded: the entry that was used first is dropped."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, Bucket] = OrderedDict()
        self._hosts: OrderedDict[str, Bucket] = OrderedDict()
        self._proved_from: OrderedDict[str, str] = OrderedDict()
        """The host that proved a name last."""
        self._logins: OrderedDict[str, Bucket] = OrderedDict()
        self._logins_per_s = 0.0
        """The rate of these buckets."""

    def problem(self, name: str, host: str, now_us: int) -> str:
        """Return why the proof of a name from a host is not checked now, for the operator; "" if it may be checked."""
        bucket = self._hosts.get(host)
        if bucket is not None and not bucket.has(1, now_us) and self._proved_from.get(name) != host:
            return f"too many failed logins from {host}: {FAILED_LOGINS_PER_HOST_S * 60:g} a minute are checked"
        bucket = self._names.get(name)
        if bucket is not None and not bucket.has(1, now_us) and self._proved_from.get(name) != host:
            rate = f"{FAILED_LOGINS_PER_NAME_S * 60:g} a minute are checked"
            return f"too many failed logins under the name {name!r}: {rate}"
        return ""

    def add_failure(self, name: str, host: str, now_us: int) -> None:
        """Count a wrong proof."""
        if self._proved_from.get(name) == host:
            del self._proved_from[name]  # from now on it is limited like any other host
        _take(self._names, name, FAILED_LOGINS_PER_NAME_S, FAILED_LOGINS_PER_NAME, now_us)
        _take(self._hosts, host, FAILED_LOGINS_PER_HOST_S, FAILED_LOGINS_PER_HOST, now_us)

    def add_success(self, name: str, host: str) -> None:
        """Note that a host has proved a name."""
        self._proved_from[name] = host
        self._proved_from.move_to_end(name)
        if len(self._proved_from) > MAX_LOGIN_BUCKETS:
            self._proved_from.popitem(last=False)

    def admit(self, host: str, per_s: float, now_us: int) -> bool:
        """Count a login, right or wrong. Return False if there are more from this host than `per_s` allows."""
        if per_s != self._logins_per_s:
            self._logins.clear()
            self._logins_per_s = per_s
        return _take(self._logins, host, per_s, max(1.0, per_s * LOGIN_BURST_S), now_us)


def _take(buckets: OrderedDict[str, Bucket], key: str, per_s: float, burst: float, now_us: int) -> bool:
    """Take a token, if there is one."""
    bucket = buckets.get(key)
    if bucket is None:
        bucket = buckets[key] = Bucket(per_s, burst, now_us)
        if len(buckets) > MAX_LOGIN_BUCKETS:
            buckets.popitem(last=False)
    else:
        buckets.move_to_end(key)
    return bucket.has(1, now_us) and bucket.take(1, now_us)
