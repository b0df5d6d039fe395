"""The application: one entity per aircraft, addressed by its tail number.

The log of an aircraft must be exact, although a sender repeats a row without an answer. So the rows
of each aircraft are numbered from 1, and its log holds the number of the last row that it applied,
in the same stored value as the sums: a row is in both or in neither. A repeated row is answered and
not applied; a row after a gap is refused, because to apply it would hide a loss.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from examples.flights import traces
from shardbus import Entity, ShardBus, handler

TRACED = traces.export()
bus = ShardBus(os.environ.get("FLIGHTS_CLUSTER", "flights"))


@dataclass(frozen=True)
class Flight:
    """One row of the file. Delays and air time are in minutes, None where unknown; the distance is
    in miles."""

    time_hour: str
    carrier: str
    flight: int
    origin: str
    dest: str
    dep_delay: int | None
    arr_delay: int | None
    air_time: int | None
    distance: int


@dataclass
class FlightLog:
    """The state of an aircraft: the sums of its flights."""

    applied: int = 0
    """The number of the last row in the sums."""
    flights: int = 0
    distance: int = 0
    arrivals: int = 0
    """The number of flights with a known arrival delay."""
    arrival_delay: int = 0


class Gap(Exception):
    """A row was sent before an earlier one was answered, or the store lost rows."""

    def __init__(self, seq: int, applied: int) -> None:
        super().__init__(f"row {seq} came when {applied} was the last one applied")


@bus.entity(name="aircraft", shards=60)
class Aircraft(Entity):
    """One aircraft."""

    state: FlightLog

    @handler
    async def record(self, seq: int, flight: Flight) -> int:
        """Apply row `seq` of this aircraft, once. Returns the number of flights in the log.

        Raises:
            Gap: the row before it has not been applied.
        """
        log = self.state
        if seq <= log.applied:
            return log.flights
        if seq != log.applied + 1:
            raise Gap(seq, log.applied)
        log.applied = seq
        log.flights += 1
        log.distance += flight.distance
        if flight.arr_delay is not None:
            log.arrivals += 1
            log.arrival_delay += flight.arr_delay
        await self.save()
        return log.flights

    @handler
    def summary(self) -> FlightLog:
        """Return the log."""
        return self.state

    @handler
    async def forget(self) -> None:
        """Start a new log."""
        self.state = FlightLog()
        await self.clear()
