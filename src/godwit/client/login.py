"""The first words on a connection: the client says who it is, and looks whether the broker knows the secret too."""

from __future__ import annotations

from godwit.client.config import ClientConfig
from godwit.wire.control import Login, Welcome, is_proof, make_proof


def make_login(config: ClientConfig, request: int, instance: bytes, binding: bytes, *, is_first: bool) -> Login:
    """`binding` is the connection's. A fresh session is asked for once: after a reconnect it is the one to resume."""
    name = config.name
    return Login(
        request=request,
        name=name,
        instance=instance,
        proof=make_proof(config.secret, "client", binding, name) if config.secret and name is not None else b"",
        session_expiry_s=config.session_expiry_s,
        fresh=config.fresh and is_first,
        will=config.will,
    )


def problem_with(welcome: Welcome, config: ClientConfig, binding: bytes) -> str:
    """Why the broker is not the one that it should be, in words; or nothing."""
    if not config.secret or config.name is None:
        return ""
    if is_proof(welcome.proof, config.secret, "server", binding, config.name):
        return ""
    return (
        f"the broker did not prove that it knows the secret of {config.name!r}: "
        "it is not the one you meant, or it has another secret for this name"
    )
