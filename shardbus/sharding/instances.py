"""The instances of an entity type: how many there are, and the rows that they are.

A type declared with `instances=` has no plain shards. Each of its shards has N rows, `17~1` to
`17~N`; a row has a home, a fence and a hand-off of its own, as a shard has. N is one number for the
whole type, and the coordinator alone decides it:

    N = max(survive(nodes) + 1, the load's instances), at most `most`, 1 to nodes

`nodes` is the number of nodes that may host the type. `instances=3` is exactly 3, or as many as
there are nodes if these are fewer. The load is the whole type's. The load's instances are the
highest of these quotients, rounded up:

    messages per second, measured or expected    / per_instance
    seconds of handlers per second               / busy_per_instance
    messages that wait in mailboxes              / waiting_per_instance

Source: docs/partitions.md; S3.48, S3.49.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

from shardbus.error_text import described, shown
from shardbus.errors import ConfigError

INSTANCE_MARK = "~"
"""Between a shard, or an entity id, and the number of the instance."""
INSTANCES_MAX = 1000
"""Instances of one type, at most."""


def row_of(shard: str, instance: int) -> str:
    """Return the row of an instance of a shard, which counts from 1."""
    return f"{shard}{INSTANCE_MARK}{instance}"


def split_row(row: str) -> tuple[str, int]:
    """Return shard and instance of a row; the instance is 0 if it is a plain shard."""
    shard, mark, number = row.rpartition(INSTANCE_MARK)
    if not mark or not number.isascii() or not number.isdigit() or number[0] == "0":
        return row, 0
    return (shard, int(number)) if len(number) <= len(str(INSTANCES_MAX)) else (row, 0)


def _none(nodes: int) -> int:
    return 0


class TypeLoad(NamedTuple):
    """The load of a type. None: it was not measured."""

    rate: float = 0.0
    """Messages per second."""
    busy: float | None = 0.0
    """Seconds of handlers per second."""
    waiting: float | None = 0.0
    """Messages that wait in mailboxes."""
    expected: float = 0.0
    """Messages per second that the user expects."""


@dataclass(frozen=True, slots=True)
class Instances:
    """How many instances a type has.

    Args:
        survive: for a number of nodes, how many of them may crash at once while one instance of
            each entity stays; smaller than that number.
        most: the largest number of instances.
        per_instance: messages per second of the whole type for which one instance is enough; 0: the
            load does not matter.
        exact: the number; then the others do not matter.
        busy_per_instance: seconds of handlers per second, which is the part of a node's loop that
            they take, for which one instance is enough; 0: it does not matter.
        waiting_per_instance: messages that wait in the mailboxes of the whole type for which one
            instance is enough; 0: they do not matter.
        expected: messages per second of the whole type to be ready for, before they arrive. Or a
            function that returns them, which each node that may host calls every few seconds in its
            loop; the highest result counts. Needs `per_instance`.

    Raises:
        ConfigError: one of them is not valid, for some number of nodes from 1 to 1000.
    """

    survive: Callable[[int], int] = _none
    most: int = INSTANCES_MAX
    per_instance: float = 0.0
    exact: int = 0
    busy_per_instance: float = 0.0
    waiting_per_instance: float = 0.0
    expected: float | Callable[[], float] = 0.0
    _survived: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The results of `survive`, by the number of nodes: it is called once for each."""

    def __post_init__(self) -> None:
        for name, least in (("most", 1), ("exact", 0)):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(f"instances: {name} is {value!r:.60}, which is no whole number")
            if not least <= value <= INSTANCES_MAX:
                raise ConfigError(f"instances: {name} is {value}, not {least} to {INSTANCES_MAX}")
        for name in ("per_instance", "busy_per_instance", "waiting_per_instance"):
            _check_load(name, getattr(self, name))
        if not callable(self.expected):
            _check_load("expected", self.expected)
        if self.expected and not self.per_instance:
            raise ConfigError(
                "instances: expected without per_instance",
                hint="per_instance says for how many messages a second one instance is enough",
            )
        if not callable(self.survive):
            raise ConfigError(f"instances: survive is {self.survive!r:.60}, no function of nodes")
        survived = tuple(self._checked(nodes) for nodes in range(1, INSTANCES_MAX + 1))
        object.__setattr__(self, "_survived", (0, *survived))

    def _checked(self, nodes: int) -> int:
        crashes: Any
        try:
            crashes = self.survive(nodes)
        except Exception as e:
            raise ConfigError(f"instances: survive({nodes}) failed: {described(e)}") from None
        if not isinstance(crashes, int) or isinstance(crashes, bool) or not 0 <= crashes < nodes:
            raise ConfigError(
                f"instances: survive({nodes}) is {shown(crashes, 60)}, not 0 to {nodes - 1}",
                hint="it says how many of that many nodes may crash",
            )
        return int(crashes)

    @property
    def most_wanted(self) -> int:
        """Return the largest number that `wanted` can return."""
        return self.exact or self.most

    @property
    def follows_load(self) -> bool:
        """True if the load of the type matters."""
        limits = self.per_instance, self.busy_per_instance, self.waiting_per_instance
        return not self.exact and any(limits)

    @property
    def timed(self) -> bool:
        """True if the time of handlers matters."""
        return not self.exact and self.busy_per_instance > 0

    def expected_now(self) -> float:
        """Return the messages per second that are expected, by the function if there is one.

        Raises:
            ConfigError: the function failed, or returned no number from 0.
        """
        if not callable(self.expected):
            return self.expected
        try:
            load = self.expected()
            _check_load("expected", load)
        except ConfigError:
            raise
        except BaseException as e:
            raise ConfigError(f"instances: expected failed: {described(e)}") from None
        return load

    def called_for(self, load: TypeLoad) -> float:
        """Return how many instances this load calls for, as a fraction. Figures that were not
        measured call for none."""
        compared = (
            (max(load.rate, load.expected), self.per_instance),
            (load.busy or 0.0, self.busy_per_instance),
            (load.waiting or 0.0, self.waiting_per_instance),
        )
        return max((amount / enough for amount, enough in compared if enough), default=0.0)

    def lacks(self, load: TypeLoad) -> bool:
        """True if something that matters was not measured."""
        return (load.busy is None and self.busy_per_instance > 0) or (
            load.waiting is None and self.waiting_per_instance > 0
        )

    def wanted(self, nodes: int, load: float) -> int:
        """Return N for this number of nodes and this load, in messages per second; 1 if there is no
        node."""
        return self.bounded(nodes, ceil(self.called_for(TypeLoad(load))))

    def bounded(self, nodes: int, by_load: int) -> int:
        """Return N for this number of nodes and the number of instances that the load calls for; 1
        if there is no node."""
        if nodes < 1:
            return 1
        if self.exact:
            return min(self.exact, nodes)
        by_crashes = self._survived[min(nodes, INSTANCES_MAX)] + 1
        return max(1, min(max(by_crashes, by_load), self.most, nodes))


def _check_load(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e12:
        raise ConfigError(f"instances: {name} is {shown(value, 60)}, no number from 0")


def instances_of(entity_type: str, declared: object) -> Instances | None:
    """Return the instances of a declaration; None if there are none: an entity runs once.

    Raises:
        ConfigError: it is neither a number from 1 to 1000 nor an `Instances`.
    """
    match declared:
        case None:
            return None
        case Instances():
            return declared
        case int() if not isinstance(declared, bool):
            if 1 <= declared <= INSTANCES_MAX:
                return Instances(exact=declared) if declared > 1 else None
            raise ConfigError(f"{entity_type!r}: instances is {declared}, not 1 to {INSTANCES_MAX}")
        case _:
            raise ConfigError(
                f"{entity_type!r}: instances is {declared!r:.60}",
                hint="give a number, or Instances(...)",
            )


def layout_with(layout: str, instances: Instances | None) -> str:
    """Return the layout of a type by which nodes and clients compare it: with instances it has
    rows. Their number is not part of it, since the coordinator decides that."""
    return layout if instances is None else f"{layout}{INSTANCE_MARK}N"
