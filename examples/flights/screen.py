"""The output of the demo: a progress bar on a terminal, else a line every few seconds; tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights.app import FlightLog
from examples.flights.rows import total

SHOWN_AIRCRAFT, SHOWN_DIFFERENCES, LINES = 10, 20, 10
NOTHING = FlightLog()


class Screen:
    """Prints for the demo. Times are seconds since its start."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, width=100)
        self._began = time.monotonic()
        self._shards: dict[str, Mapping[str, int]] = {}

    def say(self, text: str) -> None:
        """Print one event."""
        self.console.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/]  {text}")

    def bar(self, rows: int) -> Bar:
        """Show the progress of the stream."""
        return Bar(self, rows)

    def shards(self, when: str, hosted: Mapping[str, int]) -> None:
        """Record the number of shards of each node, as the next column of the table."""
        self._shards[when] = hosted

    def shard_table(self) -> None:
        """Print the number of shards of each node, one column per record."""
        table = _table("how many shards each node hosts")
        table.add_column("node")
        for when in self._shards:
            table.add_column(when, justify="right")
        names = sorted({name for hosted in self._shards.values() for name in hosted})
        for name in names:
            cells = [str(hosted.get(name, "-")) for hosted in self._shards.values()]
            table.add_row(name, *cells)
        table.add_section()
        table.add_row("all", *(str(sum(hosted.values())) for hosted in self._shards.values()))
        self.console.print(table)

    def figures(self, cluster: Mapping[str, FlightLog], file: Mapping[str, FlightLog]) -> bool:
        """Print the figures of the cluster beside the file's. Returns True if all are
        equal."""
        table = _table("what the aircraft say, and what the file says")
        table.add_column("aircraft")
        for heading in ("flights", "miles", "minutes late"):
            table.add_column(heading, justify="right")
            table.add_column("file", justify="right", style="dim")
        for tailnum in list(file)[:SHOWN_AIRCRAFT]:
            table.add_row(tailnum, *_cells(cluster.get(tailnum, NOTHING), file[tailnum]))
        table.add_row(f"+ {len(file) - SHOWN_AIRCRAFT:,}")
        table.add_section()
        table.add_row("all", *_cells(total(cluster.values()), total(file.values())))
        self.console.print(table)
        return self._equal(cluster, file)

    def _equal(self, cluster: Mapping[str, FlightLog], file: Mapping[str, FlightLog]) -> bool:
        names = dict.fromkeys([*file, *cluster])
        wrong = [n for n in names if cluster.get(n, NOTHING) != file.get(n, NOTHING)]
        for name in wrong[:SHOWN_DIFFERENCES]:
            has, should = cluster.get(name, NOTHING), file.get(name, NOTHING)
            self.console.print(f"[red]{name}: the cluster has {has}, the file {should}[/]")
        if wrong:
            self.console.print(f"[bold red]DIFFERENT[/]: {len(wrong):,} of {len(file):,} aircraft")
        else:
            size = f"{len(file):,} aircraft, {total(file.values()).flights:,} flights"
            self.console.print(f"[bold green]EQUAL[/]: {size}, to the last row")
        return not wrong


def _table(title: str) -> Table:
    return Table(box=box.SIMPLE, title=title, title_justify="left", title_style="bold")


def _cells(cluster: FlightLog, file: FlightLog) -> Sequence[str]:
    pairs = (
        (cluster.flights, file.flights),
        (cluster.distance, file.distance),
        (cluster.arrival_delay, file.arrival_delay),
    )
    return [
        text
        for has, should in pairs
        for text in (f"{has:,}" if has == should else f"[red]{has:,}[/]", f"{should:,}")
    ]


class Bar:
    """Shows the progress of the stream while its context lasts."""

    def __init__(self, screen: Screen, rows: int) -> None:
        self._screen, self._rows = screen, rows
        self._began = time.monotonic()
        self._lines = 0
        self._progress = Progress(
            TextColumn("  rows  "),
            BarColumn(40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:,.0f} rows/s"),
            TimeElapsedColumn(),
            console=screen.console,
            disable=not screen.console.is_terminal,
        )
        self._task = self._progress.add_task("rows", total=rows, rate=0.0)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, done: int) -> None:
        """Set the number of finished rows."""
        rate = done / max(time.monotonic() - self._began, 0.001)
        self._progress.update(self._task, completed=done, rate=rate)
        if not self._screen.console.is_terminal and done * LINES // self._rows > self._lines:
            self._lines = done * LINES // self._rows
            self._screen.say(f"{done:,} of {self._rows:,} rows, {rate:,.0f} rows/s")
