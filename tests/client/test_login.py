"""Both sides prove that they know the secret, for one connection only."""

from __future__ import annotations

from godwit.client.config import ClientConfig
from godwit.client.login import make_login, problem_with
from godwit.wire.control import Welcome, Will, is_proof, make_proof

INSTANCE = bytes(range(16))
BINDING = bytes(32)


def test_a_client_without_a_secret_proves_and_asks_nothing() -> None:
    login = make_login(ClientConfig(name="n"), 3, INSTANCE, BINDING, is_first=True)
    assert (login.request, login.name, login.instance, login.proof) == (3, "n", INSTANCE, b"")
    assert problem_with(Welcome(request=3, name="n", max_message_bytes=1), ClientConfig(name="n"), BINDING) == ""


def test_a_secret_is_proved_for_this_connection() -> None:
    config = ClientConfig(name="n", secret=b"secret", will=Will(topic="t", payload=b""), session_expiry_s=5)
    login = make_login(config, 0, INSTANCE, BINDING, is_first=True)
    assert is_proof(login.proof, b"secret", "client", BINDING, "n")
    assert not is_proof(login.proof, b"secret", "client", bytes([1] * 32), "n")
    assert b"secret" not in login.proof
    assert (login.will, login.session_expiry_s) == (config.will, 5)


def test_a_fresh_session_is_asked_for_once() -> None:
    config = ClientConfig(name="n", fresh=True)
    assert make_login(config, 0, INSTANCE, BINDING, is_first=True).fresh
    assert not make_login(config, 0, INSTANCE, BINDING, is_first=False).fresh


def test_the_broker_must_prove_that_it_knows_the_secret() -> None:
    config = ClientConfig(name="n", secret=b"secret")
    right = make_proof(b"secret", "server", BINDING, "n")
    assert problem_with(Welcome(request=0, name="n", proof=right, max_message_bytes=1), config, BINDING) == ""
    for wrong in (b"", make_proof(b"other", "server", BINDING, "n"), make_proof(b"secret", "client", BINDING, "n")):
        welcome = Welcome(request=0, name="n", proof=wrong, max_message_bytes=1)
        assert "did not prove" in problem_with(welcome, config, BINDING)
