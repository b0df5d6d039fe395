"""The shell of a region: its handling of messages that arrive."""

from __future__ import annotations

import asyncio
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.entities.activation import Shard
from shardbus.entities.entity_type import StopReason
from shardbus.shells.region import RegionShell
from shardbus.wire.batch import AskRun
from tests.virtual_time import virtual


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


@pytest.mark.parametrize("order", [*permutations("123"), ("1",), ()])
@virtual
async def test_a_region_has_stopped_with_its_last_shard(order: tuple[str, ...]) -> None:
    """The whole cluster stops: its shards end here, in any order, and none of them moves."""
    stopping: list[str] = []
    hosts = [SimpleNamespace(draining=SimpleNamespace(passes_on=True), shards=dict.fromkeys(order))]

    class Hosts(list[Any]):
        def stop_shards(self, shards: list[str], reason: StopReason) -> None:
            stopping.extend(shards)

    shell: Any = SimpleNamespace(
        _loop=asyncio.get_running_loop(),
        _stopped_here=None,
        host=hosts[0],
        shard_hosts=Hosts(hosts),
    )
    shell.table = shell
    stopped = RegionShell.stop_here(shell)
    assert RegionShell.stop_here(shell) is stopped, "asked twice"
    assert stopping == list(order)
    assert not hosts[0].draining.passes_on
    for shard in order:
        assert not stopped.done(), f"{shard} runs"
        del hosts[0].shards[shard]
        RegionShell.down(shell, shard)
    assert stopped.done()


@pytest.mark.parametrize(
    ("admits", "sender", "runs", "enters"),
    [
        ((True, None), "a", False, "started"),
        ((True, "a"), "a", True, "activation"),
        ((True, "a"), "a", False, "started"),
        ((True, "a"), "b", True, ""),
        ((False, None), "a", True, ""),
        (None, "a", False, ""),
    ],
)
def test_a_message_enters_a_shard_that_admits_it(
    admits: tuple[bool, str | None] | None, sender: str, runs: bool, enters: str
) -> None:
    """An entity of a shard that is not open for all may run already: it is not started again."""
    shards: dict[str, Shard] = {}
    if admits is not None:
        shards["7"] = hosted = Shard("7", 1)
        hosted.admit(*admits)
        if runs:
            activation: Any = "activation"
            hosted.activations["x"] = activation
    shell: Any = SimpleNamespace(
        host=SimpleNamespace(shards=shards, activate=lambda *arguments: "started"),
        router=SimpleNamespace(shard_of=lambda entity_id: "7"),
        _node=SimpleNamespace(loopback=None),
    )
    session: Any = SimpleNamespace(tag=sender)
    assert (RegionShell._enter(shell, session, "x") or "") == enters
