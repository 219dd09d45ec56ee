"""How a client proves its name, and the broker that it knows the same secret. The secret itself never travels.

`binding` belongs to one connection (it comes from both sides' nonces), so a proof is worth nothing on another one.
"""

from __future__ import annotations

import hmac
from typing import Final, Literal, TypeAlias

PROOF_BYTES: Final = 32
Side: TypeAlias = Literal["client", "server"]


def make_proof(secret: bytes, side: Side, binding: bytes, name: str) -> bytes:
    """What stands in `login` (side client) or in `welcome` (side server)."""
    return hmac.digest(secret, b"godwit 1 " + side.encode() + b" " + binding + name.encode(), "sha256")


def is_proof(proof: bytes, secret: bytes, side: Side, binding: bytes, name: str) -> bool:
    """Whether it is the right one, compared without telling by its duration how much of it is."""
    return hmac.compare_digest(proof, make_proof(secret, side, binding, name))
