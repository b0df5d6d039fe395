"""Every mode of a hand-off in `sharding_net`, over seeds with kills, stalls, joins and leaves.

A failing seed is replayed with `run_mode(SEED, MODE, tracing=True)`; its `log` has all that
happened.
"""

from __future__ import annotations

import pytest

from shardbus.sharding.handoff_modes import MODES
from tests.markers import long_only
from tests.records import replace
from tests.unit.sharding.sharding_net import SETTINGS, Net
from tests.unit.sharding.test_sharding_net import FAULTS, live

DIRECT = [text for text, mode in MODES.items() if mode is not None]
BUSY = (*FAULTS, "leave", "join", "leave", "join")


def run_mode(seed: int, mode: str, *, mail: float = 0.0, tracing: bool = False) -> Net:
    """Nodes and clients send for fourteen seconds while faults happen; then there is quiet."""
    net = Net(seed, settings=replace(SETTINGS, handoff=mode))
    net.tracing = tracing
    live(net, BUSY, (2, 9), mail)
    net.run_to(90)
    net.check_quiet()
    dropped = [reason for reason in net.rejected.values() if reason == "dropped_in_move"]
    handoff_mode = MODES[mode]
    assert handoff_mode is not None
    assert handoff_mode.drops or not dropped
    return net


@pytest.mark.parametrize("mode", DIRECT)
@pytest.mark.parametrize("block", [0, *long_only(1, 2, 3)])
def test_what_must_hold_holds_in_every_mode(mode: str, block: int) -> None:
    moved = carried = 0
    for seed in range(block * 10, block * 10 + 10):
        try:
            net = run_mode(seed, mode)
            moved += net.notes.get("handoff_moved", 0)
            carried += net.carried
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, mode {mode}: {error}") from error
    assert moved >= 10, "almost nothing moved directly"
    handoff_mode = MODES[mode]
    assert handoff_mode is not None
    if mode == "ordered":
        assert 0 < carried <= moved
    elif not handoff_mode.keeps_order:
        assert carried == 0
