"""SCRAM-SHA-256 (RFC 5802, RFC 7677) on the server's side: a client proves a secret without sending it.

    client          n,,n=USER,r=NONCE
    server          r=NONCE+OWN,s=SALT,i=ITERATIONS
    client          c=biws,r=NONCE+OWN,p=PROOF
    server          v=SIGNATURE, which proves that the server knows the secret too

All users of a broker have one salt. The keys that are derived from a secret are cached: a login takes the same time
whether its user exists or not.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from functools import lru_cache
from typing import Final

METHOD: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 4096
NONCE_BYTES: Final = 18
SALT_BYTES: Final = 16
MAX_MESSAGE_BYTES: Final = 4096
_MAX_CACHED_SECRETS: Final = 4096


class ScramError(Exception):
    """A message of the client is malformed, or its proof is wrong."""


class ScramExchange:
    """One authentication of one client."""

    def __init__(self, salt: bytes, random_bytes: bytes) -> None:
        """`random_bytes`: at least NONCE_BYTES, for this exchange only."""
        self.user = ""
        self._salt = salt
        self._own_nonce = binascii.b2a_base64(random_bytes, newline=False).decode()
        self._header = b""
        self._nonce = ""
        self._messages = ""

    def begin(self, message: bytes) -> bytes:
        """Return the reply to the client's first message. Raises ScramError."""
        flag, identity, bare = (*_text(message).split(",", 2), "", "")[:3]
        if flag not in ("n", "y"):
            raise ScramError("the first message is malformed, or asks for channel binding")
        if identity:
            raise ScramError("an authorization identity is not supported")
        attributes = _attributes(bare)
        self.user = _decode_user(attributes.get("n", ""))
        nonce = attributes.get("r", "")
        if not nonce or not self.user:
            raise ScramError("the first message has no user or no nonce")
        self._header = f"{flag},,".encode()
        self._nonce = nonce + self._own_nonce
        salt = binascii.b2a_base64(self._salt, newline=False).decode()
        reply = f"r={self._nonce},s={salt},i={ITERATIONS}"
        self._messages = f"{bare},{reply}"
        return reply.encode()

    def finish(self, message: bytes, secret: bytes) -> bytes:
        """Check the client's last message against the user's secret, and return the reply. Raises ScramError."""
        text = _text(message)
        without_proof, separator, proof_text = text.rpartition(",p=")
        attributes = _attributes(without_proof)
        try:
            proof = binascii.a2b_base64(proof_text, strict_mode=True)
            header = binascii.a2b_base64(attributes.get("c", ""), strict_mode=True)
        except ValueError:
            raise ScramError("the last message is not valid base64") from None
        if not separator or header != self._header or attributes.get("r") != self._nonce:
            raise ScramError("the last message does not belong to the first one")
        client_key, server_key = _keys(secret, self._salt)
        signed = f"{self._messages},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        expected = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        if not hmac.compare_digest(proof, expected):
            raise ScramError("the proof is wrong")
        return b"v=" + binascii.b2a_base64(hmac.digest(server_key, signed, "sha256"), newline=False)


@lru_cache(_MAX_CACHED_SECRETS)
def _keys(secret: bytes, salt: bytes) -> tuple[bytes, bytes]:
    """Return the client's and the server's key. The first call for a secret takes a millisecond or two."""
    salted = hashlib.pbkdf2_hmac("sha256", secret, salt, ITERATIONS)
    return hmac.digest(salted, b"Client Key", "sha256"), hmac.digest(salted, b"Server Key", "sha256")


def _text(message: bytes) -> str:
    if len(message) > MAX_MESSAGE_BYTES:
        raise ScramError(f"a message of {len(message)} bytes: at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message is not UTF-8") from None


def _attributes(text: str) -> dict[str, str]:
    """Return the attributes of a message by their letters."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, separator, value = part.partition("=")
        if len(name) != 1 or not separator or name in found or name == "m":
            raise ScramError("a message has an attribute that is malformed, repeated or unknown")
        found[name] = value
    return found


def _decode_user(text: str) -> str:
    if "=" in text.replace("=2C", "").replace("=3D", ""):
        raise ScramError("the user name is malformed")
    return text.replace("=2C", ",").replace("=3D", "=")
