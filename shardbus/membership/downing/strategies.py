"""Who stays after a split: one pure rule for each strategy.

A strategy takes a `Split` and returns a `Decision`. What none of them decides is common: without a
split nothing happens, and if only links within our side are broken, the fewest nodes that cure it
go. `ours`, `theirs`, `elders`: see `downing`.

    keep-majority    ours > theirs   stay    ours < theirs   go    equal   whoever gets the lease
                     ours = 0        go
    static-quorum    ours >= size    stay    else            go    more than 2 size - 1 members: go
    keep-oldest      all elders here stay    else            go
      down_if_alone  ours alone      go      the elders are theirs, and they are alone there   stay
    lease-majority   whoever gets the lease; ours < theirs: asks a little later   ours = 0: go
                     the lease decides about broken links, too
    down-all                                                 go
    module:name      what the user's function says; go, if it fails

In a cluster that is unborn no side can count votes, and whoever gets the lease stays; under
down-all nobody does.

Going means: every node of the side downs its own side, so that a loser does not depend on its
leader. Staying means: the leader downs the others. A lease is asked for by one of the side, and is
that of the next epoch.

**Never two winners**, whatever legal step one side is ahead of the other:

- keep-majority: ours <= what the other side counts as theirs, and the other way round. So if one
  stays without the lease, the other does not even ask for it. A side that asks has a vote, so the
  other does not see all of it on its way out.
- static-quorum: a winner has size votes and leaves fewer than size to everybody else.
- keep-oldest: two sides' elders share one, which is on one side only. The oldest alone stays only
  if it has a second Up member, or if nobody else may vote; then the others do not find it alone, or
  have no vote.
- the lease: two sides that know the same epoch ask for the same lease, and the store grants it
  once. One that knows a later epoch knows who was downed in it.
- a function of the user's: as good as the function. It is given the same counts, and may ask for
  the lease. If it raises, its side goes: the other may have found it sound, and stay.

Source: B.31, B.35-B.40; T.U17.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from shardbus.config.settings import DowningSettings
from shardbus.errors import ConfigError
from shardbus.ids import NodeId
from shardbus.membership.downing.split import Decision, DowningOutcome, Split

Strategy = Callable[[Split], Decision]
Rule = Callable[[Split], tuple[DowningOutcome, str]]
"""A strategy of the user's: what to do about a split in which members are cut off, and why, in the
words that the log and `shardbus explain downing` show. It is asked more than once about a split,
and wants no clock, dice or memory: both sides must come to opposite answers."""


def strategy_of(settings: DowningSettings) -> Strategy | None:
    """The strategy that is asked for; None if members that are unreachable stay so.

    Raises:
        ConfigError: it is the user's, and cannot be imported or called.
    """
    if ":" in settings.strategy:
        return partial(own_rule, name=settings.strategy, rule=_imported(settings.strategy))
    strategies: dict[str, Strategy] = {
        "keep-majority": keep_majority,
        "static-quorum": lambda split: static_quorum(split, settings.static_quorum_size),
        "keep-oldest": lambda split: keep_oldest(split, settings.down_if_alone),
        "down-all": down_all,
        "lease-majority": lambda split: lease_majority(
            split, settings.acquire_lease_delay_for_minority
        ),
    }
    return strategies.get(settings.strategy)


def keep_majority(split: Split) -> Decision:
    """The side with more votes stays."""
    rule, counted = "keep-majority", _counted(split)
    if common := _common(split, rule):
        return common
    if len(split.ours) > len(split.theirs):
        return _stay(split, rule, f"majority: {counted}")
    if len(split.ours) < len(split.theirs):
        return _go(split, rule, f"minority: {counted}")
    if not split.ours:
        return _go(split, rule, f"nobody here votes: {counted}")
    return _ask(split, rule, f"equal split: {counted}")


def static_quorum(split: Split, size: int) -> Decision:
    """The side with at least `size` votes stays, if the cluster is small enough for there to be
    only one."""
    rule = "static-quorum"
    if common := _common(split, rule):
        return common
    members = len(split.most) + len(split.theirs)
    if members > 2 * size - 1:
        allowed = f"{members} members, and {size} is a quorum of at most {2 * size - 1}"
        return _go(split, rule, f"the cluster is too large for its quorum: {allowed}")
    counted = f"{len(split.ours)} votes here, {size} needed"
    if len(split.ours) >= size:
        return _stay(split, rule, f"quorum: {counted}")
    return _go(split, rule, f"no quorum: {counted}")


def keep_oldest(split: Split, down_if_alone: bool) -> Decision:
    """The side with the oldest member stays; with `down_if_alone`, not if that is all it has."""
    rule, counted = "keep-oldest", _counted(split)
    if common := _common(split, rule):
        return common
    if not split.elders:
        return _go(split, rule, "no member is up")
    away = [node for node in split.elders if node in split.cut]
    if not away:
        if down_if_alone and len(split.ours) < 2 and split.theirs:
            return _go(split, rule, f"the oldest is here, but alone: {counted}")
        return _stay(split, rule, f"the oldest is here: {counted}")
    alone = len(away) == len(split.elders) and len(split.theirs) < 2
    if down_if_alone and alone and split.ours:
        return _stay(split, rule, f"the oldest is there, but alone: {counted}")
    if len(away) < len(split.elders):
        return _go(split, rule, f"which side has the oldest is not certain: {counted}")
    return _go(split, rule, f"the oldest is there: {counted}")


def down_all(split: Split) -> Decision:
    """Nobody stays."""
    rule = "down-all"
    return _common(replace(split, unborn=False), rule) or _go(
        split, rule, "some members are cut off"
    )


def lease_majority(split: Split, minority_delay: float) -> Decision:
    """Whoever gets the lease stays. A minority asks later, to let the majority be first."""
    rule, counted = "lease-majority", _counted(split)
    if common := _common(split, rule):
        lease = DowningOutcome.ASK_LEASE if common.down else DowningOutcome.NOTHING
        return replace(common, outcome=lease)
    if not split.ours:
        return _go(split, rule, f"nobody may ask for the lease: {counted}")
    if len(split.ours) < len(split.theirs):
        return _ask(split, rule, f"minority: {counted}", minority_delay)
    return _ask(split, rule, f"no minority: {counted}")


def own_rule(split: Split, name: str, rule: Rule) -> Decision:
    """What the user's function says, and the side goes if it says nothing that can be done."""
    if common := _common(split, name):
        return common
    try:
        outcome, reason = rule(split)
        follow = {
            DowningOutcome.NOTHING: _wait,
            DowningOutcome.DOWN_OTHERS: _stay,
            DowningOutcome.DOWN_OURSELVES: _go,
            DowningOutcome.ASK_LEASE: _ask,
        }[outcome]
    except Exception as error:
        return _go(split, name, f"the strategy failed: {type(error).__name__}: {error}")
    return follow(split, name, str(reason))


def unstable(split: Split, rule: str, seconds: float) -> Decision:
    """Nobody stays, because no picture lasted long enough to decide by it."""
    return _go(split, rule, f"who reaches whom has kept changing for {seconds:.1f} s")


def _imported(name: str) -> Rule:
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"cluster.downing.strategy: cannot load {name!r}: {error}",
            hint="write module:function, and see that the module can be imported from here",
        ) from error
    if not callable(found):
        raise ConfigError(f"cluster.downing.strategy: {name!r} cannot be called")
    return cast("Rule", found)


def _counted(split: Split) -> str:
    return f"{len(split.ours)} votes here, at most {len(split.theirs)} there"


def _common(split: Split, rule: str) -> Decision | None:
    """What no strategy has a say in."""
    if split.cut:
        return _ask(split, rule, "nobody has been Up yet") if split.unborn else None
    if not split.broken:
        return Decision(DowningOutcome.NOTHING, (), "no member is unreachable", rule, split)
    names = ", ".join(map(str, split.broken))
    reason = f"links within this side fail: {names}"
    return Decision(DowningOutcome.DOWN_OTHERS, split.broken, reason, rule, split)


def _stay(split: Split, rule: str, reason: str) -> Decision:
    return Decision(DowningOutcome.DOWN_OTHERS, _others(split), reason, rule, split)


def _wait(split: Split, rule: str, reason: str) -> Decision:
    return Decision(DowningOutcome.NOTHING, (), reason, rule, split)


def _go(split: Split, rule: str, reason: str) -> Decision:
    return Decision(DowningOutcome.DOWN_OURSELVES, split.side, reason, rule, split)


def _ask(split: Split, rule: str, reason: str, delay: float = 0.0) -> Decision:
    return Decision(DowningOutcome.ASK_LEASE, _others(split), reason, rule, split, delay)


def _others(split: Split) -> tuple[NodeId, ...]:
    return tuple(sorted({*split.cut, *split.broken}))
