"""What a broken connection leaves in a session. If the session is lost: messages to be sent another
way, and those to be counted. If it goes on: batches to be sent again, without asks that nobody
waits for any more, so that no handler works for who has given up.

Source: docs/architecture.md; S0.36; B.108.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from shardbus.transport.asks import Asks, Unsent
from shardbus.wire.batch import AskRun, Relayed, Run, TellRun, decode_batch, encode_batch


def take_back(runs: list[Run], asks: Asks) -> list[Unsent]:
    """The messages of runs that were never handed on, in order, with those who wait for answers.
    One whose asker waits no more is left out."""
    unsent: list[Unsent] = []
    take = asks.take
    for run in runs:
        match run:
            case TellRun():
                key = (run.type, run.method)
                rows = zip(run.ids, run.payloads, strict=True)
                unsent += [Unsent(key, "", i, p, 0, None, ()) for i, p in rows]
            case AskRun():
                key = (run.type, run.method)
                asked = zip(run.ids, run.payloads, run.corrs, strict=True)
                found = [(i, p, take(corr)) for i, p, corr in asked]
                unsent += [
                    Unsent(key, "", i, p, 0, w, run.chain) for i, p, w in found if w is not None
                ]
            case Relayed():
                key = (run.type, run.method)
                waiting = take(run.corr)
                if waiting is not None or not run.corr:
                    shard, hops, via = run.shard, run.hops, run.via
                    unsent.append(
                        Unsent(key, shard, run.id, run.payload, hops, waiting, run.chain, via)
                    )
            case _:
                pass  # replies and machines' messages meant this very process
    return unsent


def tells(runs: Iterable[Run]) -> dict[str, int]:
    """How many messages without an answer there are, by type."""
    counts: Counter[str] = Counter()
    for (entity_type, _), count in tells_by_link(runs).items():
        counts[entity_type] += count
    return dict(counts)


def tells_by_link(runs: Iterable[Run]) -> dict[tuple[str, int], int]:
    """The same by type and by the link that those came by which were passed on; 0 for our own."""
    counts: Counter[tuple[str, int]] = Counter()
    for run in runs:
        if isinstance(run, TellRun):
            counts[run.type, 0] += len(run.ids)
        elif isinstance(run, Relayed) and not run.corr:
            counts[run.type, run.via] += 1
    return counts


def still_wanted(body: bytes, asks: Asks) -> bytes:
    """A batch without the asks that have had their outcome."""
    wanted, kept = asks.entries, list[Run]()
    for run in decode_batch(body):
        if isinstance(run, AskRun):
            at = [n for n, corr in enumerate(run.corrs) if corr in wanted]
            run.ids, run.payloads = [run.ids[n] for n in at], [run.payloads[n] for n in at]
            run.corrs = [run.corrs[n] for n in at]
        elif isinstance(run, Relayed) and run.corr and run.corr not in wanted:
            continue
        kept.append(run)
    return encode_batch(kept)
