"""Downing strategies: which side stays after a split. Each is one pure function.

A strategy maps a `Split` to a `Decision`. Two rules are common to all: without a split nothing
happens, and if only links within this side are broken, the smallest set of members that cures it
goes. Under keep-oldest the oldest member is not in that set, and under static-quorum all go if it
leaves too few votes. `ours`, `theirs` and `elders` are defined in `split`.

    keep-majority    ours > theirs   stay    ours < theirs   go    equal   the lease decides
                     ours = 0        go
    static-quorum    ours >= size    stay    else            go    more than 2 size - 1 members: go
    keep-oldest      all elders here stay    else            go
      down_if_alone  ours alone      go      the elders are theirs, and they are alone there   stay
    lease-majority   the lease decides; ours < theirs: asks a little later   ours = 0: go
                     the lease decides about broken links, too
    down-all                                                 go
    module:name      the user's function decides; go, if it fails

Where the store is inside the cluster, its replicas vote under keep-majority and static-quorum, and
these rules hold where no side can have a majority of them (`electorate`). While the voters change,
each set of them decides, and the most cautious decision holds: go, then the lease, then stay.

In an unborn cluster there are no votes, and the lease decides; under down-all every side goes.

«Go»: every node of the side downs its own side, so that a losing side does not depend on its
leader. «Stay»: the leader downs the others. One node of a side requests the lease, under the next
epoch.

**Never two winners**, whatever legal step one side is ahead of the other:

- keep-majority: ours <= the number that the other side counts as theirs, and the reverse. So if one
  side stays without the lease, the other does not even request it. A side that does has a vote, so
  the other side does not see all of it on its way out.
- static-quorum: a winner has `size` votes and leaves fewer than `size` to all others.
- by replicas: `electorate` has the proof.
- keep-oldest: the elders of two sides share a member, which is on one side only. An oldest member
  alone stays only if it has a second Up member, or if no other member may vote. Then the others do
  not find it alone, or have no vote.
- the lease: two sides with the same epoch request the same lease, and the store grants it once. A
  side with a later epoch has the members that were downed in it.
- a user's function: as safe as the function. It receives the same counts, and may request the
  lease. If it raises, its side goes: on the other side it may have returned «stay».

Source: B.31, B.35-B.40.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

from shardbus.config.settings import DowningSettings
from shardbus.error_text import described, plain
from shardbus.errors import ConfigError
from shardbus.ids import NodeId
from shardbus.membership.downing.electorate import Votes
from shardbus.membership.downing.split import Decision, DowningOutcome, Split
from shardbus.quantities import counted

Strategy = Callable[[Split], Decision]
Rule = Callable[[Split], tuple[DowningOutcome, str]]
"""A user's strategy: the outcome of a split in which members are cut off, and the reason, in the
words that the log and `shardbus explain downing` show. It is called more than once about a split,
and must use no clock, dice or memory: both sides must come to opposite answers."""


def strategy_of(settings: DowningSettings) -> Strategy | None:
    """Return the configured strategy; None if unreachable members stay members.

    Raises:
        ConfigError: it is the user's, and cannot be imported or called.
    """
    if ":" in settings.strategy:
        return partial(user_strategy, name=settings.strategy, rule=_import_rule(settings.strategy))
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
    """Keep the side with more votes."""
    rule = "keep-majority"
    if common := _common_decision(split, rule):
        return common
    return _by_voters(split, rule, _majority_of_members(split, rule))


def _majority_of_members(split: Split, rule: str) -> Decision:
    counted = _count_votes(split)
    if len(split.ours) > len(split.theirs):
        return _down_others(split, rule, f"majority: {counted}")
    if len(split.ours) < len(split.theirs):
        return _down_ourselves(split, rule, f"minority: {counted}")
    if not split.ours:
        return _down_ourselves(split, rule, f"no vote here: {counted}")
    return _ask_lease(split, rule, f"equal split: {counted}")


def static_quorum(split: Split, size: int) -> Decision:
    """Keep the side with at least `size` votes, if the cluster is small enough that only one side
    can have them."""
    rule = "static-quorum"
    if common := _common_decision(split, rule):
        left = len(set(split.ours) - set(split.broken))
        if split.broken and not split.unborn and left < size:
            votes = counted(left, "vote")
            return _down_ourselves(split, rule, f"no quorum: {votes} without bad links")
        return common
    return _by_voters(split, rule, _quorum_of_members(split, rule, size))


def _quorum_of_members(split: Split, rule: str, size: int) -> Decision:
    members = len(split.most) + len(split.theirs)
    if members > 2 * size - 1:
        allowed = f"{counted(members, 'member')}, and {size} is a quorum of at most {2 * size - 1}"
        return _down_ourselves(split, rule, f"the cluster is too large for its quorum: {allowed}")
    votes = f"{counted(len(split.ours), 'vote')} here, {size} needed"
    if len(split.ours) >= size:
        return _down_others(split, rule, f"quorum: {votes}")
    return _down_ourselves(split, rule, f"no quorum: {votes}")


CAUTION = (DowningOutcome.DOWN_OURSELVES, DowningOutcome.ASK_LEASE, DowningOutcome.DOWN_OTHERS)


def _by_voters(split: Split, rule: str, members: Decision) -> Decision:
    """Decide by the replicas of the store, if they vote. `members`: the members' decision."""
    decisions = [(votes and _by_replicas(split, rule, votes)) or members for votes in split.votes]
    return min(decisions, key=lambda decision: CAUTION.index(decision.outcome))


def _by_replicas(split: Split, rule: str, votes: Votes) -> Decision | None:
    """Decide by one set of replicas; None if no side's store can answer."""
    ours, theirs, more, half = votes.ours, votes.theirs, votes.strangers, votes.replicas / 2
    why = f"{ours} of {counted(votes.replicas, 'replica')} here, at most {theirs} there"
    why += f", and {more} without a node" if more else ""
    if ours > half:
        return _down_others(split, rule, f"majority of the store: {why}")
    if theirs <= half < ours + more:
        return _ask_lease(split, rule, f"which side has the store is not certain: {why}")
    if theirs + more > half:
        return _down_ourselves(split, rule, f"the store is there: {why}")
    return None


def keep_oldest(split: Split, down_if_alone: bool) -> Decision:
    """Keep the side with the oldest member. With `down_if_alone`, not if that member is alone
    there."""
    rule, counted = "keep-oldest", _count_votes(split)
    if common := _common_decision(split, rule):
        return common
    if not split.elders:
        return _down_ourselves(split, rule, "no member is up")
    away = [node for node in split.elders if node in split.cut]
    if not away:
        if down_if_alone and len(split.ours) < 2 and split.theirs:
            return _down_ourselves(split, rule, f"the oldest is here, but alone: {counted}")
        return _down_others(split, rule, f"the oldest is here: {counted}")
    alone = len(away) == len(split.elders) and len(split.theirs) < 2
    if down_if_alone and alone and split.ours:
        return _down_others(split, rule, f"the oldest is there, but alone: {counted}")
    if len(away) < len(split.elders):
        return _down_ourselves(split, rule, f"which side has the oldest is not certain: {counted}")
    return _down_ourselves(split, rule, f"the oldest is there: {counted}")


def down_all(split: Split) -> Decision:
    """Down every side."""
    rule = "down-all"
    return _common_decision(replace(split, unborn=False), rule) or _down_ourselves(
        split, rule, "some members are cut off"
    )


def lease_majority(split: Split, minority_delay: float) -> Decision:
    """Keep the side that gets the lease. A minority asks later, so that the majority is first."""
    rule, counted = "lease-majority", _count_votes(split)
    if common := _common_decision(split, rule):
        lease = DowningOutcome.ASK_LEASE if common.down else DowningOutcome.NOTHING
        return replace(common, outcome=lease)
    if not split.ours:
        return _down_ourselves(split, rule, f"no vote here, so no right to the lease: {counted}")
    if len(split.ours) < len(split.theirs):
        return _ask_lease(split, rule, f"minority: {counted}", minority_delay)
    return _ask_lease(split, rule, f"no minority: {counted}")


WHY_MAX = 500
"""Characters of the reason, or of the error, of a user's function."""


def user_strategy(split: Split, name: str, rule: Rule) -> Decision:
    """Decide by the user's function. The side goes if the function fails or returns anything
    invalid."""
    if common := _common_decision(split, name):
        return common
    try:
        outcome, reason = rule(split)
        follow = {
            DowningOutcome.NOTHING: _do_nothing,
            DowningOutcome.DOWN_OTHERS: _down_others,
            DowningOutcome.DOWN_OURSELVES: _down_ourselves,
            DowningOutcome.ASK_LEASE: _ask_lease,
        }[outcome]
        why = plain(str(reason), WHY_MAX)
    except BaseException as error:
        return _down_ourselves(split, name, f"the strategy failed: {described(error, WHY_MAX)}")
    return follow(split, name, why)


def unstable(split: Split, rule: str, seconds: float) -> Decision:
    """Decide that the side goes, because no picture has lasted long enough to decide by it."""
    return _down_ourselves(split, rule, f"reachability has kept changing for {seconds:.1f} s")


def _import_rule(name: str) -> Rule:
    module, _, attribute = name.partition(":")
    try:
        rule: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"cluster.downing.strategy: cannot load {name!r}: {error}",
            hint="write module:function, and see that the module can be imported from here",
        ) from error
    if not callable(rule):
        raise ConfigError(f"cluster.downing.strategy: {name!r} cannot be called")
    return cast("Rule", rule)


def _count_votes(split: Split) -> str:
    return f"{counted(len(split.ours), 'vote')} here, at most {len(split.theirs)} there"


def _common_decision(split: Split, rule: str) -> Decision | None:
    """Decide the cases that are the same for every strategy."""
    if split.cut:
        return _ask_lease(split, rule, "no member has been Up yet") if split.unborn else None
    if not split.broken:
        return Decision(DowningOutcome.NOTHING, (), "no member is unreachable", rule, split)
    names = ", ".join(map(str, split.broken))
    reason = f"links within this side fail: {names}"
    return Decision(DowningOutcome.DOWN_OTHERS, split.broken, reason, rule, split)


def _down_others(split: Split, rule: str, reason: str) -> Decision:
    return Decision(DowningOutcome.DOWN_OTHERS, _all_others(split), reason, rule, split)


def _do_nothing(split: Split, rule: str, reason: str) -> Decision:
    return Decision(DowningOutcome.NOTHING, (), reason, rule, split)


def _down_ourselves(split: Split, rule: str, reason: str) -> Decision:
    return Decision(DowningOutcome.DOWN_OURSELVES, split.side, reason, rule, split)


def _ask_lease(split: Split, rule: str, reason: str, delay: float = 0.0) -> Decision:
    return Decision(DowningOutcome.ASK_LEASE, _all_others(split), reason, rule, split, delay)


def _all_others(split: Split) -> tuple[NodeId, ...]:
    return tuple(sorted({*split.cut, *split.broken}))
