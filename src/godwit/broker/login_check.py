"""Whether a login may come in: its name, its proof, its last will.

On a broker that only takes clients that prove a name, the answer to a refused login is the same whether the name exists
or not, and costs the same work: otherwise names could be found out one by one. Which of the two it was is said to the
operator alone. Nothing else of the login is looked at before its proof.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from godwit.broker.catalogue import Catalogue
from godwit.broker.failure import RequestFailure
from godwit.broker.session import Link, check_chosen, check_name
from godwit.broker.topics import RESERVED, check_topic
from godwit.errors import BadTopicError, UsageError
from godwit.wire.control import Login, Will, is_proof
from godwit.wire.control_base import Code

NO_NAME: Final = "this broker takes only clients that prove a name: connect with a name and its secret"
NOT_PROVED: Final = "the name is unknown here, or its proof is missing or wrong: check the name and its secret"
DECOY_BYTES: Final = 32


class LoginRefusal(RequestFailure):
    """A login that is refused; `detail` is for the operator's eyes."""

    def __init__(self, code: Code, text: str, detail: str) -> None:
        super().__init__(code, text)
        self.detail = detail


class LoginCheck:
    """`is_proved` is its one method for others."""

    def __init__(self, catalogue: Catalogue, entropy: Callable[[int], bytes]) -> None:
        self._catalogue = catalogue
        self._decoy = entropy(DECOY_BYTES)
        """In place of the secret of a name that does not exist."""

    def is_proved(self, link: Link, login: Login) -> bool:
        """Return whether the login proves its name. RequestFailure if the client may not come in."""
        name = login.name
        if name is not None:
            try:
                check_name(name)
                check_chosen(name)
            except UsageError as error:
                raise RequestFailure(Code.BAD_NAME, str(error)) from None
        is_proved = self._check_proof(link, login)
        if login.will is not None:
            self._check_will(login.will, name, is_proved)
        return is_proved

    def _check_proof(self, link: Link, login: Login) -> bool:
        access = self._catalogue.settings.access
        name = login.name
        if name is None:
            if not access.allows_anonymous:
                raise RequestFailure(Code.NOT_ALLOWED, NO_NAME)
            return False
        secret = access.secret_of(name)
        if secret is None and access.allows_anonymous:
            return False  # without the work of a proof: that the name is not listed is no secret where it is let in
        fits = is_proof(login.proof, self._decoy if secret is None else secret, "client", link.connection.binding, name)
        if secret is None:
            raise LoginRefusal(Code.NOT_ALLOWED, NOT_PROVED, f"no client {name!r} is listed")
        if not fits:
            raise LoginRefusal(Code.NOT_ALLOWED, NOT_PROVED, f"the proof of the name {name!r} is missing or wrong")
        return True

    def _check_will(self, will: Will, name: str | None, is_proved: bool) -> None:
        try:
            check_topic(will.topic)
        except BadTopicError as error:
            raise RequestFailure(Code.BAD_TOPIC, f"the last will: {error}") from None
        settings = self._catalogue.settings
        if will.topic.startswith(RESERVED):
            raise RequestFailure(Code.NOT_ALLOWED, f"the last will: topic {will.topic!r} is the broker's own")
        if not settings.access.may(name or "", is_proved, "publish", will.topic):
            raise RequestFailure(Code.NOT_ALLOWED, f"a last will on {will.topic!r} is not allowed for this client")
        if self._catalogue.get(will.topic) is None and settings.policy_of(will.topic) == "explicit":
            raise RequestFailure(Code.NO_SUCH_TOPIC, f"the last will: topic {will.topic!r} does not exist")
