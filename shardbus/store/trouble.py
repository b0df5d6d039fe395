"""The meaning of an error of a store's server for a call."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from shardbus.errors import StoreUnavailable


class Trouble(msgspec.Struct, frozen=True):
    """`what` completes a sentence that begins with the server's URL. `again`: a later call, or
    another server, may succeed soon. `definite`: the server did not run the call."""

    what: str
    hint: str = ""
    again: bool = False
    definite: bool = True

    def refuse(self, answer: asyncio.Future[Any], shown: str, *, in_doubt: bool) -> None:
        """Let a call of the store `shown` fail. `in_doubt`: the server may have run it before."""
        if not answer.done():
            definite = self.definite and not in_doubt
            text = f"{shown} {self.what}"
            answer.set_exception(StoreUnavailable(text, hint=self.hint, definite=definite))
