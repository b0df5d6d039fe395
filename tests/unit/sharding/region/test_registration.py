"""The registration of a region: which shards make it register again after RegisterAck."""

from __future__ import annotations

from shardbus.ids import NodeId
from shardbus.sharding.messages import Home
from shardbus.sharding.region.registration import Registration

ME, OLD, NEW = (NodeId("n", port, 1) for port in range(1, 4))
FORMER, PRESENT = Home("1", ME, 3 << 32), Home("2", ME, 4 << 32)


def registered_anew(*hosted: Home) -> Registration:
    """Return a region's registration under epoch 4, after epoch 3. Register had these shards."""
    registration = Registration(registers=True, retry_interval=2.0)
    for epoch, node in ((3, OLD), (4, NEW)):
        registration.set_coordinator(node, 0.0)
        assert registration.take_due(0.0)
        registration.reported = hosted
        registration.refusal(node, epoch)
        registration.on_registered(hosted, 0.0)
    return registration


def test_a_shard_of_a_former_coordinator_is_reported_though_two_acks_come() -> None:
    registration = registered_anew()
    registration.on_registered((FORMER,), 1.0)  # two Registers had gone out without it
    registration.on_registered((FORMER,), 1.0)
    assert registration.take_due(1.0)
    registration.reported = (FORMER,)
    registration.on_registered((FORMER,), 2.0)
    assert registration.due is None


def test_a_shard_that_this_coordinator_granted_needs_no_report() -> None:
    registration = registered_anew(FORMER)
    registration.on_registered((FORMER, PRESENT), 1.0)
    assert registration.due is None


def test_a_former_coordinator_s_move_that_ends_after_the_ack_is_reported() -> None:
    registration = registered_anew()
    registration.on_arrival(PRESENT, 1.0)
    assert registration.due is None
    registration.on_arrival(FORMER, 1.0)
    assert registration.due == 1.0
    assert registration.is_registered


def test_an_arrival_before_the_ack_leaves_the_retries_as_they_are() -> None:
    registration = registered_anew()
    registration.set_coordinator(OLD, 1.0)
    assert registration.take_due(1.0)
    due = registration.due
    registration.on_arrival(FORMER, 1.0)
    assert registration.due == due
