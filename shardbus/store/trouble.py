"""The meaning of an error of a store's server for a call."""

from __future__ import annotations

import msgspec


class Trouble(msgspec.Struct, frozen=True):
    """`what` completes a sentence that begins with the server's URL. `again`: a later call, or
    another server, may succeed soon. `definite`: the server did not run the call."""

    what: str
    hint: str = ""
    again: bool = False
    definite: bool = True
