"""The states of a connection.

    CONNECTING --accepted--> OPEN --close()------------------------> CLOSING --time--> CLOSED
         |                    \\-----peer closed, reset, silence---> DRAINING --time--> CLOSED
         \\--refused, silence, close()----------------------------------------------> CLOSED

CLOSING answers what still comes with its close again; DRAINING is silent. Both only wait for stray packets to die out.
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Of a connection; the module's first lines draw the transitions."""

    CONNECTING = "connecting"
    OPEN = "open"
    CLOSING = "closing"
    DRAINING = "draining"
    CLOSED = "closed"
