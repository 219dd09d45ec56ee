"""The errors of the pipeline: the one that ends a command, and failures of queries and of stores in one sentence.

Spark reports a failed query as pages of text, with Python tracebacks inside Java messages. deltalake and pyarrow report
an object store's answer in XML, in several lines with escape codes for colours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_SENTENCE: Final = 600
"""Characters of a failure's sentence."""
FINAL: Final = frozenset(("OptionError", "DataLossError", "RefusedError"))
"""Errors of godwit.spark that a retry cannot fix."""
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STORE: Final = re.compile(r"Generic \w+ error|Kernel error|AWS Error|Object at location|lacked the necessary|GetToken")
"""Occurs in errors of object stores, as deltalake and pyarrow report them."""
_URL: Final = re.compile(r"(https?://[^\s/?]+)[^\s,]*")
"""Only the host is shown: the rest may contain a signature."""
_STORE_CODE: Final = re.compile(r"<Code>(\w+)</Code>|AWS Error (\w+)|(\d{3} [A-Z][a-z]+(?: [A-Z][a-z]+)*)")
_STORE_SENTENCES: Final = (
    (
        r"scheme is not allowed",
        "has an address that begins with http://, so data would not be encrypted: use https://, or set "
        "AWS_ALLOW_HTTP=true if the network is trusted",
    ),
    (
        r"169\.254\.169\.254|metadata\.google|CredentialsError|credential\w* (?:not|were not) found|GetToken",
        "gets no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the variables of another store, or "
        "give this machine a role",
    ),
    (
        r"NoSuchBucket|bucket does not exist|ContainerNotFound|FilesystemNotFound|Bucket not found",
        "does not have the bucket: create it, or correct --lake or the address of the store (AWS_ENDPOINT_URL)",
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed|Received redirect|MOVED_PERMANENTLY",
        "has the bucket in another region: set AWS_REGION to that region",
    ),
    (
        r"NETWORK_CONNECTION|error sending request|tcp connect|dns error|timed out|Timeout was reached",
        "does not answer: check the network and the address of the store (AWS_ENDPOINT_URL), or try again later",
    ),
    (
        r"AccessKeyId|SignatureDoesNotMatch|ACCESS_DENIED|AccessDenied|ExpiredToken|InvalidToken|40[13] |privileges"
        r"|AuthenticationFailed|AuthorizationFailure|AuthorizationPermissionMismatch",
        "refuses the credentials: check the key and its rights to list, read, write and delete",
    ),
)
"""By a pattern in the error: how the sentence about the store ends."""
_OURS: Final = re.compile(r"^(?:Caused by: |\S+: )?godwit\.[\w.]+\.(\w+Error): (.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:Caused by: )?(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


class PipelineError(Exception):
    """End a command. The text states what happened, to what, and what to do; it is shown without a traceback."""


@dataclass(frozen=True)
class QueryFailure:
    """The reason why a streaming query failed."""

    sentence: str
    is_final: bool
    """Whether the same error would follow each retry."""


def explained(text: str) -> QueryFailure:
    """Return the cause of a failure from the text of Spark's exception.

    An error of Godwit takes precedence over errors that followed from it; then the last Python or Java exception in
    the text; then its first line.
    """
    ours = _OURS.findall(text)
    for name, sentence in ours:
        if name in FINAL:
            return QueryFailure(_shortened(sentence), is_final=True)
    if ours:
        return QueryFailure(_shortened(ours[-1][1]), is_final=False)
    if is_store_error(text):
        return QueryFailure(explained_store(text), is_final=False)
    if found := _PYTHON.findall(text):
        name, sentence = found[-1]
        return QueryFailure(_shortened(f"{name}: {sentence}"), is_final=False)
    first_line = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return QueryFailure(_shortened(first_line), is_final=False)


def is_store_error(text: str) -> bool:
    """Return whether an error of deltalake or pyarrow is one of an object store."""
    return _STORE.search(text) is not None


def explained_store(text: str) -> str:
    """Return an error of deltalake or pyarrow in one sentence: for an object store with the remedy."""
    text = _URL.sub(r"\1", _ESCAPE.sub("", text))
    plain = " ".join(text.replace("\u21b3", "-").split())
    if not is_store_error(text):
        return _shortened(plain)
    for pattern, sentence in _STORE_SENTENCES:
        if re.search(pattern, text):
            return _shortened(f"the object store{_store_details(text)} {sentence}")
    return _shortened(f"{plain}; check the variables that begin with AWS_, AZURE_ or GOOGLE_")


def _store_details(text: str) -> str:
    """Return the store's address and its error codes, in parentheses, as far as they are known."""
    found = [address for address in _URL.findall(text)[:1] if "169.254" not in address]
    for codes in _STORE_CODE.findall(text):
        code = next(filter(None, codes))
        if code not in found:
            found.append(code)
    return f" ({', '.join(found[:3])})" if found else ""


def _shortened(sentence: str) -> str:
    sentence = " ".join(sentence.split()).removesuffix(".")
    return sentence if len(sentence) <= MAX_SENTENCE else sentence[: MAX_SENTENCE - 3] + "..."
