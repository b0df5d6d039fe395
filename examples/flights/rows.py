"""The file of flights: its rows, and the figures computed from them without a cluster."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from examples.flights.app import Flight, FlightLog

FILE = Path(__file__).parent / "data" / "flights-2013-01.csv.gz"
UNKNOWN = "NA"


@dataclass(frozen=True, slots=True)
class Row:
    """A flight, its aircraft, and its number among the flights of that aircraft, from 1."""

    tailnum: str
    """Empty if the file does not name the aircraft."""
    seq: int
    flight: Flight


def read(file: Path = FILE) -> Iterator[Row]:
    """Yield the rows in the order of the file. The rows of each tail number are counted from 1."""
    counts: dict[str, int] = {}
    with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
        for values in csv.DictReader(text):
            tailnum = "" if values["tailnum"] == UNKNOWN else values["tailnum"]
            counts[tailnum] = seq = counts.get(tailnum, 0) + 1
            yield Row(tailnum, seq, _flight(values))


def _flight(values: dict[str, str]) -> Flight:
    return Flight(
        values["time_hour"],
        values["carrier"],
        int(values["flight"]),
        values["origin"],
        values["dest"],
        _minutes(values["dep_delay"]),
        _minutes(values["arr_delay"]),
        _minutes(values["air_time"]),
        int(values["distance"]),
    )


def _minutes(text: str) -> int | None:
    return None if text == UNKNOWN else int(text)


def straight(rows: Iterable[Row]) -> dict[str, FlightLog]:
    """Return the log of every aircraft, computed from the rows, in the order of first flights."""
    logs: dict[str, FlightLog] = {}
    for row in rows:
        if not row.tailnum:
            continue
        log = logs.setdefault(row.tailnum, FlightLog())
        log.applied = row.seq
        log.flights += 1
        log.distance += row.flight.distance
        if row.flight.arr_delay is not None:
            log.arrivals += 1
            log.arrival_delay += row.flight.arr_delay
    return logs


def total(logs: Iterable[FlightLog]) -> FlightLog:
    """Return the sum of logs."""
    summed = FlightLog()
    for log in logs:
        summed.applied += log.applied
        summed.flights += log.flights
        summed.distance += log.distance
        summed.arrivals += log.arrivals
        summed.arrival_delay += log.arrival_delay
    return summed
