"""What a node or a client takes from its surroundings: a network, a random name and random numbers.
The simulator passes its own.

Source: docs/simulation.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random

from shardbus.transport.network import Network
from shardbus.transport.zmq.network import ZmqNetwork


@dataclass(slots=True)
class Environment:
    """The surroundings of one process. `uid`: the random name of this incarnation, 64 bits."""

    uid: int = field(default_factory=lambda: int.from_bytes(os.urandom(8), "big"))
    network: Network = field(default_factory=ZmqNetwork)
    dice: Random = field(default_factory=Random)
