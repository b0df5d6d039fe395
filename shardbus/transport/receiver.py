"""Who is at the end of a session: what it hands out, run by run, in the order of sending.

Source: docs/architecture.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shardbus.wire.batch import AskRun, Control, Flush, Relayed, TellRun

if TYPE_CHECKING:
    from shardbus.transport.session import Session


class Receiver(Protocol):
    """Who handles what arrives."""

    def on_tells(self, session: Session, run: TellRun) -> None: ...
    def on_asks(self, session: Session, run: AskRun) -> None: ...
    def on_relayed(self, session: Session, message: Relayed) -> None: ...
    def on_control(self, session: Session, control: Control) -> None: ...
    def on_flush(self, session: Session, flush: Flush) -> None: ...
