"""The shell of a region: what it does with messages that arrive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shardbus.shells.region import RegionShell
from shardbus.wire.batch import AskRun


def test_an_ask_that_has_expired_while_it_was_held_reaches_no_handler() -> None:
    """A held run is handed out with no time left."""
    lost: list[tuple[str, list[str]]] = []
    shell: Any = SimpleNamespace(
        _check_leases=None,
        entity_type=SimpleNamespace(invokers={"hit": object()}),
        host=SimpleNamespace(
            counts=SimpleNamespace(accepted=0),
            deliveries=SimpleNamespace(invokers={"hit": object()}),
        ),
        _lost_run=lambda reason, run, sender: lost.append((reason, run.ids)),
    )
    session: Any = SimpleNamespace(name="client")
    RegionShell.on_asks(shell, session, AskRun("page", "hit", 0, ["x"], [b""], [1]))
    assert lost == [("expired", ["x"])]
    assert shell.host.counts.accepted == 1
