"""WebSocket (RFC 6455) on the server's side, as far as MQTT needs it: the handshake, and binary messages as a stream.

    receive(data)    returns the bytes of MQTT; `output` has bytes to send; `is_closed` after an error or a close
    frame(data)      returns bytes of MQTT as one binary message

The boundaries of messages do not matter to MQTT. Frames of clients must be masked, and have a bounded length.

A browser lets every page connect to every server, also to one in the user's own network, and states the page's origin.
So a request with an origin is accepted only if it is configured, or is the server itself. Other programs send none, or
the address that they connect to.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection
from typing import Final

MAX_REQUEST_BYTES: Final = 8192
"""Of the HTTP request."""
MAX_CONTROL_BYTES: Final = 125
"""Of a ping or a close."""
SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
ANY_ORIGIN: Final = "*"
CLOSE_PROTOCOL: Final = 1002
CLOSE_NOT_BINARY: Final = 1003
CLOSE_TOO_LARGE: Final = 1009


class WebSocketStream:
    """One connection."""

    __slots__ = (
        "_buffer", "_frame_bytes", "_is_open", "_mask", "_max_frame_bytes", "_origins", "_path", "_within_message",
        "is_closed", "output",
    )  # fmt: skip

    def __init__(self, path: str, max_frame_bytes: int, origins: Collection[str] = ()) -> None:
        """`path`: what the request must ask for. `origins`: of pages that may connect, in lower case; `*`: all."""
        self._path = path
        self._origins = origins
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()
        """Of the request, of the head of a frame, or of a control frame: data is passed on as it arrives."""
        self._frame_bytes = 0
        """How much is missing of a frame with data."""
        self._mask = b""
        self._is_open = False
        self._within_message = False
        self.output: list[bytes] = []
        self.is_closed = False
        """Nothing is read any more: send `output`, and close the connection."""

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the client, and return those of MQTT in them."""
        if self.is_closed:
            return b""
        self._buffer += data
        if not self._is_open and not self._read_request():
            return b""
        return self._read_frames()

    def frame(self, data: bytes) -> bytes:
        """Return a binary message with these bytes."""
        return encode_frame(_BINARY, data)

    # -- handshake ----------------------------------------------------------------------------------------------------

    def _read_request(self) -> bool:
        """Return whether the connection is open now."""
        head, end, _ = bytes(self._buffer[: MAX_REQUEST_BYTES + 4]).partition(b"\r\n\r\n")
        if not end:
            if len(self._buffer) > MAX_REQUEST_BYTES:
                self._refuse("431 Request Header Fields Too Large")
            return False
        del self._buffer[: len(head) + len(end)]
        first, *lines = head.decode("latin-1").split("\r\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if colon:
                key = name.strip().lower()
                headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()
        words = first.split(" ")
        if len(words) != 3 or words[0] != "GET" or not words[2].startswith("HTTP/1."):
            return self._refuse("400 Bad Request")
        if words[1].partition("?")[0] != self._path:
            return self._refuse("404 Not Found")
        origin = headers.get("origin")
        if origin is not None and not self._allows(origin.lower(), headers.get("host", "").lower()):
            text = "this page may not connect: add its origin to `origins` under [mqtt] of the broker's configuration"
            return self._refuse("403 Forbidden", "Content-Type: text/plain\r\n", text)
        key = headers.get("sec-websocket-key", "")
        upgrade = headers.get("upgrade", "").lower()
        if upgrade != "websocket" or "upgrade" not in headers.get("connection", "").lower() or not _is_key(key):
            return self._refuse("426 Upgrade Required", "Upgrade: websocket\r\nConnection: Upgrade\r\n")
        if headers.get("sec-websocket-version") != "13":
            return self._refuse("426 Upgrade Required", "Sec-WebSocket-Version: 13\r\n")
        offered = [text.strip() for text in headers.get("sec-websocket-protocol", "").split(",")]
        chosen = next((name for name in SUBPROTOCOLS if name in offered), None)
        if chosen is None:
            return self._refuse("400 Bad Request")
        accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()
        self.output.append(
            (
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {chosen}\r\n\r\n"
            ).encode()
        )
        self._is_open = True
        return True

    def _allows(self, origin: str, host: str) -> bool:
        """Return whether a page may connect, by its origin and by the host that it has asked for."""
        is_own = bool(host) and origin in (f"http://{host}", f"https://{host}")
        return is_own or origin in self._origins or ANY_ORIGIN in self._origins

    def _refuse(self, status: str, headers: str = "", text: str = "") -> bool:
        head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        self.output.append((head + text).encode())
        self.is_closed = True
        return False

    # -- frames -------------------------------------------------------------------------------------------------------

    def _read_frames(self) -> bytes:
        buffer = self._buffer
        found: list[bytes] = []
        pong = b""
        at = 0
        while not self.is_closed and at < len(buffer):
            if self._frame_bytes:
                body = bytes(buffer[at : at + self._frame_bytes])
                found.append(unmask(body, self._mask))
                rest = len(body) % 4
                self._mask = self._mask[rest:] + self._mask[:rest]
                self._frame_bytes -= len(body)
                at += len(body)
                continue
            if len(buffer) - at < 2:
                break
            first, second = buffer[at], buffer[at + 1]
            size = second & 0x7F
            mask_at = at + 2
            if size >= 126:
                mask_at += 2 if size == 126 else 8
                if len(buffer) < mask_at:
                    break
                size = int.from_bytes(buffer[at + 2 : mask_at], "big")
            problem = self._frame_problem(first, second, size)
            if problem:
                self._close(problem)
                break
            body_at = mask_at + 4
            is_control = first & 0x0F >= _CLOSE
            if len(buffer) < body_at + (size if is_control else 0):
                break
            mask = bytes(buffer[mask_at:body_at])
            if is_control:
                body = unmask(bytes(buffer[body_at : body_at + size]), mask)
                at = body_at + size
                pong = self._handle_control(first & 0x0F, body) or pong
            else:
                self._within_message = not first & 0x80
                self._frame_bytes = size
                self._mask = mask
                at = body_at
        del buffer[:at]
        if pong:  # one for all pings, as RFC 6455 allows
            self.output.append(pong)
        return b"".join(found)

    def _frame_problem(self, first: int, second: int, size: int) -> int:
        """Return the close code for a frame that is not valid, else 0."""
        kind = first & 0x0F
        is_control = kind >= _CLOSE
        if not second & 0x80 or first & 0x70:
            return CLOSE_PROTOCOL
        if is_control:
            is_bad = kind > _PONG or not first & 0x80 or size > MAX_CONTROL_BYTES
            return CLOSE_PROTOCOL if is_bad else 0
        if kind == _TEXT:
            return CLOSE_NOT_BINARY
        if kind > _BINARY or (kind == _CONTINUATION) != self._within_message:
            return CLOSE_PROTOCOL
        return CLOSE_TOO_LARGE if size > self._max_frame_bytes else 0

    def _handle_control(self, kind: int, body: bytes) -> bytes:
        """Return the reply to a ping."""
        if kind == _CLOSE:
            self.output.append(encode_frame(_CLOSE, body[:2]))
            self.is_closed = True
        return encode_frame(_PONG, body) if kind == _PING else b""

    def _close(self, code: int) -> None:
        self.output.append(encode_frame(_CLOSE, code.to_bytes(2, "big")))
        self.is_closed = True


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        return False


def encode_frame(kind: int, body: bytes) -> bytes:
    """Return a frame of the server, which is not masked."""
    size = len(body)
    if size < 126:
        return bytes((0x80 | kind, size)) + body
    if size < 0x10000:
        return bytes((0x80 | kind, 126)) + size.to_bytes(2, "big") + body
    return bytes((0x80 | kind, 127)) + size.to_bytes(8, "big") + body


def unmask(body: bytes, mask: bytes) -> bytes:
    """Return the bytes of a masked frame: one XOR of two large numbers is much faster than a loop."""
    size = len(body)
    if not size:
        return b""
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(body, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")
