"""The certificate of a listener with TLS, such as MQTT and the console, which can be replaced while it is in use."""

from __future__ import annotations

import ssl
from pathlib import Path


def check_certificate(certificate: Path, key: Path) -> None:
    """Raise OSError if reading a certificate or its key fails, or they do not belong together."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)


def load_certificate(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load a certificate and its key, also into a context that is in use: new connections get the new one.

    Raises:
        OSError: Reading the files failed, or they do not belong together. The context has not changed.
    """
    # OpenSSL replaces the certificate before it reads the key, and drops a key that does not fit: a context in use
    # would be left without a key. That happens when only one of two renewed files has been replaced.
    check_certificate(certificate, key)
    context.load_cert_chain(certificate, key)
