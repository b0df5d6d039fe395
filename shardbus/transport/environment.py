"""What a node or a client takes from its surroundings: a network, a random name, random numbers and
a clock. The simulator passes its own.

Source: docs/simulation.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from shardbus.transport.network import Network
from shardbus.transport.permissions import SECRET_BYTES, uid_of
from shardbus.transport.suspend_clock import suspend_clock
from shardbus.transport.zmq.network import ZmqNetwork


@dataclass(slots=True)
class Environment:
    """The surroundings of one process. `secret`: drawn for this incarnation; its uid is a hash of
    it. `clock`: the clock of the cluster thread, in seconds."""

    secret: bytes = field(default_factory=lambda: os.urandom(SECRET_BYTES), repr=False)
    network: Network = field(default_factory=ZmqNetwork)
    dice: Random = field(default_factory=Random)
    clock: Callable[[], float] = suspend_clock

    @property
    def uid(self) -> int:
        """The random name of this incarnation, 64 bits."""
        return uid_of(self.secret)
