"""`shardbus simulate`: run simulated clusters under seeded faults, and check their invariants.

A simulated cluster consists of membership machines or, with `--sharding`, of whole nodes and their
clients. Seeds are independent, so `--jobs` processes take them from one queue; the output is in the
order of the seeds.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from shardbus.simulation.membership.options import Options
    from shardbus.simulation.membership.run import RunOutcome
    from shardbus.simulation.nodes.options import NodeOptions


WithLoad = Annotated[
    str | None,
    typer.Option(help="With --sharding: thin or dense; drawn from the seed if not given."),
]

WithSplits = Annotated[
    bool,
    typer.Option("--splits", help="With --sharding: splits and stopped nodes in every run."),
]

WithHandoff = Annotated[
    str, typer.Option("--handoff", help="With --sharding: the mode in which shards move.")
]

WithHomes = Annotated[
    str, typer.Option("--homes", help="With --sharding: how nodes learn homes, ask or gossip.")
]

WithInstances = Annotated[
    int,
    typer.Option("--instances", min=0, max=9, help="With --sharding: a type with N instances."),
]
WithFailures = Annotated[
    float,
    typer.Option(
        "--failing-handlers",
        min=0.0,
        max=1.0,
        help="With --sharding: the part of messages whose handler raises.",
    ),
]
WithDeliveries = Annotated[
    bool, typer.Option("--deliveries", help="With --sharding: deliveries, which take effect once.")
]
WithEvents = Annotated[
    bool,
    typer.Option("--events", help="With --sharding: event-sourced entities and a projection."),
]
WithDiscovery = Annotated[
    bool,
    typer.Option("--discovery", help="Nodes start at once, and find each other by the store."),
]

WithClaims = Annotated[
    bool,
    typer.Option("--claims", help="Nodes have the same two seeds; the store decides who founds."),
]
WithStrategy = Annotated[
    str | None, typer.Option(help="The downing strategy; drawn from the seed if not given.")
]
WithReplicas = Annotated[
    bool,
    typer.Option("--replicas", help="The store is inside the cluster, and its ring changes."),
]
WithKills = Annotated[
    str,
    typer.Option("--kill-at", help="With --sharding: kills at a move's PHASE/VICTIM, or any."),
]

WithLinks = Annotated[
    str,
    typer.Option("--links", help="fair, or unfair: some nodes have troubles with the others."),
]

FaultSeconds = Annotated[
    float | None,
    typer.Option(
        min=1.0, max=1e6, help="Simulated seconds with faults, per seed; 30, with unfair links 60."
    ),
]

SEEDS = 100
SEEDS_PER_TURN = 4
"""Seeds that a process takes from the queue at once."""


def simulate(
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds, from --seed on; 100 if neither is given."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The first seed; without --seeds the only one.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=2000, help="Nodes; drawn from the seed if not given.")
    ] = None,
    seconds: FaultSeconds = None,
    strategy: WithStrategy = None,
    sharding: Annotated[
        bool,
        typer.Option("--sharding", help="Whole nodes with entities, clients and a store."),
    ] = False,
    load: WithLoad = None,
    splits: WithSplits = False,
    handoff: WithHandoff = "buffer",
    homes: WithHomes = "ask",
    instances: WithInstances = 0,
    discovery: WithDiscovery = False,
    claims: WithClaims = False,
    replicas: WithReplicas = False,
    kill_at: WithKills = "",
    failing_handlers: WithFailures = 0.0,
    deliveries: WithDeliveries = False,
    events: WithEvents = False,
    links: WithLinks = "fair",
    jobs: Annotated[
        int, typer.Option(min=1, max=256, help="Processes that run at the same time.")
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per seed.")
    ] = False,
) -> None:
    """Run simulated clusters under seeded faults; exit code 5 if an invariant is violated."""
    from shardbus.config.settings import HANDOFFS, HOMES
    from shardbus.sharding.handoff_modes import MODES
    from shardbus.simulation.membership.options import STRATEGIES, draw, with_replicas
    from shardbus.simulation.nodes.move_kills import targets_of
    from shardbus.simulation.nodes.options import ANY_PHASE, DENSITIES, draw_node_options

    _one_of("--strategy", strategy, STRATEGIES)
    _one_of("--load", load, DENSITIES)
    _one_of("--handoff", handoff, HANDOFFS)
    _one_of("--homes", homes, HOMES)
    _one_of("--kill-at", kill_at or None, (ANY_PHASE, *map(str, targets_of(MODES[handoff]))))
    _check_kind(load, sharding=sharding, discovery=discovery, claims=claims)
    _check_links(links, splits or kill_at or discovery or claims or replicas)
    if replicas and (sharding or strategy):
        _refuse("--replicas", "not with --sharding, nor --strategy: it draws one that counts votes")
    count = seeds or (SEEDS if seed is None else 1)
    numbers = range(seed or 0, (seed or 0) + count)
    plain = (draw(n, nodes, seconds, strategy, links) for n in numbers)
    joining = (replace(setup, discovery=discovery, claims=claims) for setup in plain)
    drawn: list[Options | NodeOptions] = list(map(with_replicas, joining) if replicas else joining)
    if sharding:
        more = (nodes, seconds, strategy, load, splits or None, handoff, homes, instances, kill_at)
        parts = (failing_handlers, links, deliveries, events)
        drawn = [draw_node_options(n, *more, *parts) for n in numbers]
    _report(drawn, jobs, as_json)


def _check_links(links: str, others: object) -> None:
    """Refuse unknown links, and options that do not go together with unfair ones."""
    from shardbus.simulation.membership.troubles import LINKS

    _one_of("--links", links, LINKS)
    if links == "unfair" and others:
        _refuse("--links", "not with --splits, --kill-at, --discovery, --claims or --replicas")


def _check_kind(load: str | None, *, sharding: bool, discovery: bool, claims: bool) -> None:
    """Refuse options that do not go together."""
    if load is not None and not sharding:
        _refuse("--load", "only whole nodes have a load: --sharding")
    for name, chosen, other in (("--discovery", discovery, claims), ("--claims", claims, False)):
        if chosen and sharding:
            _refuse(name, "nodes join one by one with --sharding")
        if chosen and other:
            _refuse(name, "nodes join in one way: not with --claims")


def _report(drawn: list[Options | NodeOptions], jobs: int, as_json: bool) -> None:
    """Run these options and print the runs that broke a rule, or every run as JSON."""
    began, outcomes = perf_counter(), []
    for outcome in _run_all(drawn, jobs):
        outcomes.append(outcome)
        if as_json:
            output.data(json.dumps(row(outcome)))
        elif outcome.broken:
            output.data(outcome.report())
    if not as_json:
        _sum_up(outcomes, perf_counter() - began)
    if any(outcome.broken for outcome in outcomes):
        raise typer.Exit(ExitCode.UNHEALTHY)


def _one_of(option: str, value: str | None, choices: Iterable[str]) -> None:
    if value is not None and value not in choices:
        raise typer.BadParameter(f"{value!r} is none of {', '.join(choices)}", param_hint=option)


def _refuse(option: str, why: str) -> NoReturn:
    raise typer.BadParameter(why, param_hint=option)


def _run_all(drawn: list[Options | NodeOptions], jobs: int) -> Iterator[RunOutcome]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    if jobs == 1:
        yield from map(_run, drawn)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent) as pool:
        yield from pool.map(_run, drawn, chunksize=SEEDS_PER_TURN)


def _end_with_parent() -> None:
    """Let this worker end once its parent was killed, also while it waits for its next run."""
    from multiprocessing import parent_process
    from threading import Thread

    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, name="shardbus-parent", daemon=True).start()


def _run(drawn: Options | NodeOptions) -> RunOutcome:
    from shardbus.simulation.membership.options import Options
    from shardbus.simulation.membership.run import simulate as run
    from shardbus.simulation.nodes.run import simulate_nodes

    return run(drawn) if isinstance(drawn, Options) else simulate_nodes(drawn)


def row(outcome: RunOutcome) -> dict[str, object]:
    """Return one outcome for JSON. It does not depend on the machine that ran it."""
    from dataclasses import asdict

    broken = outcome.broken
    return {
        "seed": outcome.options.seed,
        "digest": outcome.digest,
        "events": outcome.events,
        "simulated_s": round(outcome.simulated_s, 6),
        "settled_s": outcome.settled_s,
        "survivors": outcome.survivors,
        "counts": dict(outcome.counts),
        "broken": None if broken is None else {"rule": broken.rule, "detail": broken.detail},
        "options": asdict(cast("Any", outcome.options)),
        "replay": outcome.options.command(),
    }


def _sum_up(outcomes: list[RunOutcome], took: float) -> None:
    simulated = sum(outcome.simulated_s for outcome in outcomes)
    settled = sorted(o.settled_s for o in outcomes if o.settled_s is not None)
    facts: dict[str, object] = {
        "seeds": len(outcomes),
        "broken": sum(outcome.broken is not None for outcome in outcomes),
        "events": sum(outcome.events for outcome in outcomes),
        "simulated_seconds": round(simulated),
        "per_wall_second": round(simulated / took),
    }
    counts: Counter[str] = Counter()
    for outcome in outcomes:
        counts.update(outcome.counts)
    facts |= counts
    if settled:
        facts["agreed_after_median_s"] = settled[len(settled) // 2]
        facts["agreed_after_most_s"] = settled[-1]
    if len(outcomes) == 1:
        facts["digest"] = outcomes[0].digest
    output.facts(facts)
