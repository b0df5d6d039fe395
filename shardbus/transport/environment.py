"""What a node or a client is built on: wires, names and dice. The simulator has its own.

Source: docs/simulation.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random

from shardbus.transport.network import Network, ZmqNetwork


@dataclass(slots=True)
class Environment:
    """One process's share of the world. `uid`: the random name of this incarnation, 64 bits."""

    uid: int = field(default_factory=lambda: int.from_bytes(os.urandom(8), "big"))
    network: Network = field(default_factory=ZmqNetwork)
    dice: Random = field(default_factory=Random)
