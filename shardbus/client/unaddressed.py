"""What a process that hosts nothing does with messages for entities: nobody should send it any.

Source: S2.37; C.36.
"""

from __future__ import annotations

from shardbus.errors import RequestError
from shardbus.transport.session import Session
from shardbus.wire.batch import AskRun, Flush, Relayed, TellRun


class Unaddressed:
    """The receiving side of a client, but for what its contact says."""

    def on_tells(self, session: Session, run: TellRun) -> None:
        """Nobody tells a client."""

    def on_asks(self, session: Session, run: AskRun) -> None:
        """Nobody asks a client."""
        for corr in run.corrs:
            session.fail(corr, RequestError("a client hosts nothing"))

    def on_relayed(self, session: Session, message: Relayed) -> None:
        """Nobody sends a client on."""

    def on_flush(self, session: Session, flush: Flush) -> None:
        """A client hosts nothing; the echo is true at once."""
        session.reply(flush.corr, b"")
