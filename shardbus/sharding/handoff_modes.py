"""The modes of a hand-off: the handling of messages while a shard moves, chosen per entity type.

In mode `buffer`, the default, every sender keeps its messages until the shard has its new home
(`coordinator/handoff`). In every other mode the old home hands the shard to the new one directly
(`coordinator/direct_moves`), and three choices define the mode:

    during    the old home, until the new one is ready
        keep      2a  its entities go on handling messages
        forward   2b  they stop, and messages are forwarded to the new home, which keeps them
        drop      2c  they stop, and messages are dropped
    arrivals  the new home, with messages that come to it directly
        open      3a  it handles them as they come
        buffer    3b  it keeps them per sending node, until it has everything that the node had sent
                      to the old home
    after     the old home, with messages that still come to it
        forward   4a  it forwards them
        drop      4b  it drops them

Of the twelve combinations seven make sense. `REASONS` refuses the other five. Three of the seven
have names:

    name      choices    one active   order   lost
    ordered   2a 3b 4a   yes          yes     none
    forward   2a 3a 4a   no           no      none
    drop      2c 3a 4b   yes          no      counted, and reported to the sender

*One active* fails where the old home keeps its entities and the new one handles messages as they
come (`overlaps`): two activations of an entity run for a moment. Such a mode is refused for types
with `state` or `remember`. Every dropped message is counted as `dropped_in_move`, and reported to
its sender as every refused message is.

Source: S3.55, S3.65-S3.71, S3.76, S3.78, S3.79, N.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

from shardbus.errors import ConfigError

During = Literal["keep", "forward", "drop"]
Arrivals = Literal["open", "buffer"]
After = Literal["forward", "drop"]

DURING: tuple[During, ...] = ("keep", "forward", "drop")
ARRIVALS: tuple[Arrivals, ...] = ("open", "buffer")
AFTER: tuple[After, ...] = ("forward", "drop")

BUFFER = "buffer"
"""The name of the mode in which senders keep their messages, and no shard moves directly."""

_OPTIONS = {"keep": "2a", "forward": "2b", "drop": "2c"}, {"open": "3a", "buffer": "3b"}

_NO_ACKNOWLEDGEMENT = "buffers open by acknowledgements, which the old home must forward"

REASONS: dict[tuple[str, str, str], str] = {
    **{(during, "buffer", "drop"): _NO_ACKNOWLEDGEMENT for during in DURING},
    ("forward", "open", "drop"): "what is forwarded first would be dropped later, without a gain",
    ("drop", "buffer", "forward"): "what was dropped has no place in an order",
}
"""Why five of the combinations are refused."""


@dataclass(frozen=True, slots=True)
class HandoffMode:
    """The handling of messages while a shard moves directly. Users write it as `Handoff(...)`.

    Raises:
        ConfigError: the combination is refused; the error has the reason.
    """

    during: During = "keep"
    arrivals: Arrivals = "buffer"
    after: After = "forward"

    def __post_init__(self) -> None:
        chosen = (self.during, self.arrivals, self.after)
        allowed = (("during", DURING), ("arrivals", ARRIVALS), ("after", AFTER))
        for value, (name, values) in zip(chosen, allowed, strict=True):
            if value not in values:
                raise ConfigError(f"Handoff: {name} is {value!r}, not one of {', '.join(values)}")
        if why_not := REASONS.get(chosen):
            raise ConfigError(f"Handoff: {'/'.join(chosen)} ({self.options}) is refused: {why_not}")

    @property
    def text(self) -> str:
        """Return the name of the mode, or its three choices, as settings and messages have it."""
        plain = f"{self.during}/{self.arrivals}/{self.after}"
        return next((name for name, mode in NAMED.items() if mode == self), plain)

    @property
    def options(self) -> str:
        """Return the numbers of the choices in the specification."""
        during, arrivals = _OPTIONS
        return f"{during[self.during]} {arrivals[self.arrivals]} 4{'ab'[self.after == 'drop']}"

    @property
    def overlaps(self) -> bool:
        """True if the new home handles messages before the entities of the old one have stopped."""
        return self.during == "keep" and self.arrivals == "open"

    @property
    def keeps_order(self) -> bool:
        """True if messages of one sender to one entity are handled in their order."""
        return self.arrivals == "buffer"

    @property
    def drops(self) -> bool:
        """True if messages may be dropped."""
        return "drop" in (self.during, self.after)


NAMED: dict[str, HandoffMode] = {
    "ordered": HandoffMode("keep", "buffer", "forward"),
    "forward": HandoffMode("keep", "open", "forward"),
    "drop": HandoffMode("drop", "open", "drop"),
}
ALLOWED: tuple[HandoffMode, ...] = tuple(
    HandoffMode(*chosen) for chosen in product(DURING, ARRIVALS, AFTER) if chosen not in REASONS
)
MODES: dict[str, HandoffMode | None] = {BUFFER: None} | {
    mode.text: mode for mode in (*NAMED.values(), *ALLOWED)
}
"""Every mode by the text that settings and messages have; None is `buffer`."""


def check_mode(kind: str, text: str, *, state: bool, remember: bool, durable: bool = False) -> None:
    """Check that a type may move in this mode. `state`: it declares a state. `durable`: its
    entities have durable mailboxes.

    Raises:
        ConfigError: the mode runs two activations for a moment, and the type cannot bear that.
    """
    mode = MODES[text]
    if mode is not None and mode.overlaps and (state or remember or durable):
        why = "state" if state else "remember" if remember else "durable_mailbox"
        raise ConfigError(
            f"{kind!r}: handoff {text} runs an entity at two nodes for a moment, which the type's"
            f" {why} forbids",
            hint="use ordered or buffer",
        )
