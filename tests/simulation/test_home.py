"""Messages that stay on their node, in the simulator: with the direct way and without it, entities
see the same, and no fault breaks either."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus.shells import direct_messages
from shardbus.shells.direct_messages import DirectMessages
from shardbus.simulation.membership.options import Options
from shardbus.simulation.nodes.checker import DeliveryChecker, Line
from shardbus.simulation.nodes.options import NodeOptions, draw_node_options
from shardbus.simulation.nodes.run import NodeRun
from shardbus.transport.direct_message import DEPTH_MAX, DirectMessage, DirectTell
from tests.markers import long_only, soak_only

WAYS = (0, DEPTH_MAX)
"""Direct messages inside one another: none at all, and as many as elsewhere."""
CALM = [
    NodeOptions(Options(seed=1, nodes=1, seconds=8.0), clients=0, rests=0.0),
    NodeOptions(Options(seed=2, nodes=2, seconds=8.0), density="dense", burst=40, thinks=0.3),
    NodeOptions(Options(seed=3, nodes=3, seconds=8.0), thinks=0.5, every_s=0.05),
]


class Seen:
    """The messages that entities handle, and how many of them were direct."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lines: dict[Line, list[int]] = {}
        self.asks = self.tells = 0
        on_handled, counted = DeliveryChecker.on_handled, DirectMessages._counted

        def handled(checker: Any, activation: Any, sender: str, seq: int) -> Any:
            message = on_handled(checker, activation, sender, seq)
            self.lines.setdefault(message.line, []).append(seq)
            return message

        def direct(way: DirectMessages, message: DirectMessage, invoker: Any) -> Any:
            if isinstance(message, DirectTell):
                self.tells += 1
            else:
                self.asks += 1
            return counted(way, message, invoker)

        patch.setattr(DeliveryChecker, "on_handled", handled)
        patch.setattr(DirectMessages, "_counted", direct)


def run(load: NodeOptions, most: int) -> Seen:
    """Run with at most this number of direct messages inside one another; nothing may break."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct_messages, "DEPTH_MAX", most)
        seen = Seen(patch)
        node_run = NodeRun(load)
        node_run.application.awaits = True
        outcome = node_run.run()
        assert outcome.broken is None, f"{most} direct messages: {outcome.report()}"
    return seen


@pytest.mark.parametrize("load", CALM, ids=lambda load: f"seed {load.seed}")
def test_entities_see_the_same_by_both_ways(load: NodeOptions) -> None:
    batched, direct = (run(load, most) for most in WAYS)
    assert (batched.asks, batched.tells) == (0, 0)
    assert direct.asks > 20
    assert direct.tells > 20
    assert direct.lines == batched.lines


@pytest.mark.parametrize("seed", [0, *long_only(1), *soak_only(*range(2, 6))])
def test_no_fault_breaks_either_way(seed: int) -> None:
    load = draw_node_options(seed, seconds=12.0)
    for most in WAYS:
        run(load, most)
