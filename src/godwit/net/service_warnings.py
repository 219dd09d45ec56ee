"""Texts of event lines that warn of what a broker's configuration allows, each with the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from godwit.broker.access import Access, Action
from godwit.broker.topics import shown
from godwit.install import pip_command

KEY_NOT_STORED: Final = (
    "this broker has no data folder and cannot write to the user's own, so its key is new after each start and clients "
    "will refuse it: give a data folder, or certificate and key under [security]"
)
PLAIN_ALLOWED: Final = (
    'clients of other machines may connect without sealing, because plain is "allow" under [security]: every machine '
    "on the way reads and changes their messages; leave the key out unless the network is trusted"
)


def open_to_all(url: str) -> str:
    """Return the warning of a broker that any machine can reach and any client may use."""
    return (
        f"{url} can be reached from other machines and every client may do everything, so that anyone on the network "
        "can publish: list clients and rules under [access] in the configuration, or listen on 127.0.0.1 only"
    )


def open_to_strangers(url: str, access: Access) -> str:
    """Return the warning of a broker where clients without a proved name may do more than subscribe; or ""."""
    rights = [right for right in access.rights_of_anonymous() if right[0] != "subscribe"]
    if not rights or not access.allows_anonymous:
        return ""
    return (
        f"{url} can be reached from other machines, and anyone on the network can {_listed(rights)}: see the rules "
        'for "*", or set anonymous = false under [access]'
    )


def anonymous_rights(access: Access) -> str:
    """Return the line with the rights of clients that have not proved a name."""
    if access.is_open:
        return "clients need no name, and every client may do everything"
    if not access.allows_anonymous:
        return "clients without a proved name are refused"
    rights = access.rights_of_anonymous()
    if not rights:
        return "clients without a proved name may connect, and do nothing else"
    denied = any(rule.deny and rule.is_for_everyone for rule in access.rules)
    return f"clients without a proved name may {_listed(rights)}{', except where a rule denies it' if denied else ''}"


_VERBS: Final[dict[Action, str]] = {
    "publish": "publish to",
    "subscribe": "subscribe to",
    "create": "create",
    "submit": "submit jobs of",
    "work": "work on",
    "kick": "kick clients",
    "relay": "relay",
}
_FILTERS_SHOWN: Final = 5


def _listed(rights: Sequence[tuple[Action, tuple[str, ...]]]) -> str:
    phrases = []
    for action, filters in rights:
        more = len(filters) - _FILTERS_SHOWN
        texts = [*map(shown, filters[:_FILTERS_SHOWN]), *([f"{more} more"] if more > 0 else [])]
        phrases.append(f"{_VERBS[action]} {', '.join(texts)}".rstrip())
    return "; ".join(phrases)


def mqtt_without_tls(url: str) -> str:
    """Return the warning of an MQTT listener to which passwords travel unencrypted."""
    return (
        f"{url} can be reached from other machines and has no TLS, so that passwords of MQTT clients are sent without "
        "encryption: use tls:// with certificate and key under [mqtt], or listen on 127.0.0.1 only"
    )


def names_in_metrics(url: str) -> str:
    """Return the warning of a metrics endpoint that shows names to other machines."""
    return (
        f"{url} can be reached from other machines and shows names of clients or topics: "
        "let it listen on 127.0.0.1 only, or leave out clients and topics under [metrics] in the configuration"
    )


def archive_not_installed(missing: Sequence[str]) -> str:
    """Return the line of a broker without the packages of the archive."""
    return f"the archive is off because it needs {' and '.join(missing)}: run {pip_command('archive')}"


def archive_without_tls(listen: str) -> str:
    """Return the warning of an archive whose tokens travel unencrypted."""
    return (
        f"the archive on {listen} can be reached from other machines and has no certificate, so that tokens are sent "
        "without encryption: give certificate and key under [archive] in the configuration, or let it listen on "
        "127.0.0.1 only and reach it through a tunnel"
    )


def archive_open_to_all(listen: str) -> str:
    """Return the warning of an archive that any machine can reach, without tokens."""
    return (
        f"the archive on {listen} can be reached from other machines and every client may read and write there: "
        "give a token_file under [archive] in the configuration, or let it listen on 127.0.0.1 only"
    )


def cluster_without_tls(addresses: Sequence[str]) -> str:
    """Return the warning of a node whose connections to the engine of its cluster anyone on the way reads."""
    more = f" and {len(addresses) - 1} more of the engine" if len(addresses) > 1 else " of the engine"
    return (
        f"connections of the cluster to {addresses[0]}{more} are not encrypted or not verified, so that everyone "
        "on the way can read and change messages: give ca, and certificate and key, with tls:// and https:// for NATS, "
        "under [cluster], or keep these addresses in a network of their own"
    )
