"""`state set`, `state remove`, `state export` and `state import`.

`set` and `remove` ask a node, which lets the owner of the entity do it: the node's HTTP needs
`http.write` and the operator's token. With `--store` they write the store themselves, as `import`
does, and refuse that while nodes run. `export` reads, and may run beside nodes.

Source: docs/how-to/keep-state.md.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from shardbus_cli import output
from shardbus_cli.app_and_cluster import NamedCluster
from shardbus_cli.data import opened, refuse_if_running
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AppOfCluster, ClusterName, Json, NodeUrl, StoreUrl
from shardbus_cli.state_lines import ShardFinder, import_lines, lines_of_outboxes, lines_of_type

if TYPE_CHECKING:
    from shardbus.entities.entity_type import EntityType
    from shardbus.store.protocol import StateStore

Type = Annotated[str, typer.Argument(metavar="TYPE", help="Name of the entity type.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the entity.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store", metavar="URL", help="Write this store; no node may run. Default: ask a node."
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(
        "--revision", metavar="TEXT", help="Only if `state show` still has it; not with --store."
    ),
]


def set_(
    kind: Type,
    entity_id: Id,
    state: Annotated[str, typer.Argument(metavar="JSON", help="The state, as `show` prints it.")],
    store: Store = None,
    revision: Revision = None,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    node: NodeUrl = NODE_URL,
) -> None:
    """Set the state of one entity, which starts again with it."""
    from shardbus.wire.plain_json import from_json
    from shardbus.wire.schema import encode_value

    try:
        plain = from_json(json.loads(state))
    except ValueError as error:
        raise CommandFailure(f"the state is no JSON: {error}", code=ExitCode.USAGE) from None
    if store is None:
        path = ("v1", "state", kind, entity_id)
        output.data(NodeHttp(node).post_json(state, *path, revision=revision))
        return
    _check_by_node(revision)
    named = NamedCluster(cluster, app, node, by_app=True)
    bus = named.bus
    declared = bus.types.get(kind) if bus is not None else None
    _check_settable(kind, declared)
    if (app is not None and declared is None) or (declared is not None and declared.states is None):
        raise CommandFailure(f"{kind!r} is no type with state of the application")
    data = encode_value(plain) if declared is None else declared.states.of_plain(plain)  # type: ignore[union-attr]
    _write_here(store, named, kind, entity_id, data)


def remove(
    kind: Type,
    entity_id: Id,
    store: Store = None,
    revision: Revision = None,
    keep_messages: Annotated[
        bool,
        typer.Option(
            "--keep-messages", help="Though messages wait in its durable mailbox, which stay."
        ),
    ] = False,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    node: NodeUrl = NODE_URL,
) -> None:
    """Remove the state of one entity, and its reminders; it starts again without."""
    if store is None:
        path, keeps = ("v1", "state", kind, entity_id), "true" if keep_messages else None
        answer = NodeHttp(node).delete(*path, revision=revision, keep_messages=keeps)
        output.data(answer.text)
        if answer["removed"] is False:
            output.note(_nothing_stored(kind, entity_id))
        return
    _check_by_node(revision)
    named = NamedCluster(cluster, app, node, by_app=True)
    _check_settable(kind, named.bus.types.get(kind) if named.bus is not None else None)
    _write_here(store, named, kind, entity_id, None, keeps_messages=keep_messages)


def export(
    store: StoreUrl,
    types: Annotated[
        list[str] | None, typer.Argument(metavar="[TYPE]...", help="Names of entity types.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every type with state or reminders of the application.")
    ] = False,
    prefix: Annotated[str, typer.Option(help="Only ids that begin with this.")] = "",
    after: Annotated[
        str | None,
        typer.Option(metavar="PAGE", help="Go on at this page of one type: the last `page` read."),
    ] = None,
    rate: Annotated[int, typer.Option(min=1, help="Entities per second.")] = 100_000,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    node: NodeUrl = NODE_URL,
) -> None:
    """Print every stored state as a line of JSON, also those that instances share, reminders,
    journals, messages of durable mailboxes, and entities that are remembered; with --all the
    outboxes of clients, too."""
    import asyncio

    named = NamedCluster(cluster, app, node, by_app=True)
    bus = named.bus
    names = list(types or ())
    if every and bus is not None:
        kept = [
            (name, k.has_state or k.reminds or k.durable_mailbox) for name, k in bus.types.items()
        ]
        names = [name for name, keeps in kept if keeps]
    if not names or (every and (bus is None or types)) or (after is not None and len(names) != 1):
        raise CommandFailure(
            "give TYPE..., or --all with an application; --after is for one type",
            "--app names one, or pyproject.toml",
            code=ExitCode.USAGE,
        )
    name = named.name

    async def print_all() -> int:
        count = 0
        async with opened(store, name) as states:
            for kind in names:
                before = count
                async for line in lines_of_type(states, bus, kind, prefix, after, rate):
                    output.data(line)
                    count += 1
                if count == before and (mistake := named.mistaken_type(kind)):
                    raise CommandFailure(mistake, code=ExitCode.REFUSED)
            if every:
                async for line in lines_of_outboxes(states):
                    output.data(line)
                    count += 1
        return count

    output.note(output.counted(asyncio.run(print_all()), "line"))


def import_(
    store: StoreUrl,
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="Lines of an export; - is standard input.")
    ] = "-",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another state that is there.")
    ] = False,
    skip: Annotated[
        bool, typer.Option("--skip-existing", help="Keep another state that is there.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all, write nothing.")] = False,
    cluster: ClusterName = None,
    app: AppOfCluster = None,
    node: NodeUrl = NODE_URL,
    as_json: Json = False,
) -> None:
    """Write the lines of an export into a store. No node may run. It may be repeated."""
    import asyncio

    if replace and skip:
        raise CommandFailure("--replace or --skip-existing, not both", code=ExitCode.USAGE)
    named = NamedCluster(cluster, app, node, by_app=True)
    bus, name = named.bus, named.name if dry_run else named.stopped()
    existing = "replace" if replace else "skip" if skip else "refuse"

    async def write_all() -> dict[str, int]:
        async with opened(store, name, creates=True) as states:
            if not dry_run:
                await refuse_if_running(states, name, bus.types if bus is not None else ())
            with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as lines:  # noqa: ASYNC230
                return await import_lines(states, bus, lines, existing, write=not dry_run)

    try:
        done = asyncio.run(write_all())
    except OSError as error:
        raise CommandFailure(f"{file}: {error.strerror}", code=ExitCode.USAGE) from None
    if as_json:
        output.data(json.dumps({"cluster": name, "dry_run": dry_run, **done}))
    else:
        counts = ", ".join(f"{count} {what}" for what, count in done.items())
        output.note(f"{counts}{': nothing was written' if dry_run else ''}")


def _check_by_node(revision: str | None) -> None:
    if revision is not None:
        raise CommandFailure("--revision is not for --store", code=ExitCode.USAGE)


def _check_settable(kind: str, declared: EntityType | None) -> None:
    """Check that a state is not made by events, nor shared by instances, as far as the application
    is known.

    Raises:
        CommandFailure: it is.
    """
    if declared is not None and (declared.events is not None or declared.projection is not None):
        hint = "let a handler persist an event, or `shardbus projection rewind`"
        raise CommandFailure(f"the state of {kind} is made by events", hint, code=ExitCode.REFUSED)
    if declared is not None and declared.merged is not None:
        why = f"the instances of {kind} share their state: a node writes it"
        raise CommandFailure(why, "leave out --store", code=ExitCode.REFUSED)


async def _refuse_with_messages(store: StateStore, kind: str, shard: str, entity_id: str) -> None:
    """Let no state be removed without a word on the messages that wait for it.

    Raises:
        Refused: there are some in the journal of the entity's durable mailbox.
    """
    from shardbus.entities.deliveries import waiting_messages
    from shardbus.entities.durable_mailboxes import JOURNAL
    from shardbus.store.journal_protocol import journals_of

    if (journals := journals_of(store)) is not None:
        page = await journals.read(JOURNAL + kind, shard, f"{shard}/{entity_id}", 0, 0)
        if page.last >= page.first:
            raise waiting_messages(kind, entity_id, page.last - page.first + 1)


def _nothing_stored(kind: str, entity_id: str) -> str:
    return f"{kind} {entity_id!r} had no stored state"


def _write_here(
    url: str,
    named: NamedCluster,
    kind: str,
    entity_id: str,
    data: bytes | None,
    *,
    keeps_messages: bool = False,
) -> None:
    """Write one state into the store, unless a node runs. The numbers of its deliveries stay: what
    has taken effect does so no more. Reminders end with a state that is removed."""
    import asyncio

    from shardbus.store.transfer import write_state
    from shardbus.wire.stored_state import split_numbered, split_record, with_record

    name, bus = named.stopped(), named.bus

    async def write() -> bool:
        """Return True if a state was stored before."""
        async with opened(url, name) as store:
            await refuse_if_running(store, name, (kind,))
            [stored] = await store.read_states(kind, [entity_id])
            record, alone = split_record(stored or b"")
            if split_numbered(alone)[0]:
                text = f"the state of {kind} {entity_id!r:.100} is made by events"
                raise CommandFailure(text, "name the application by --app", code=ExitCode.REFUSED)
            shard = await ShardFinder(store, bus).learn(kind, entity_id)
            new = with_record(record, data) if record else data
            if data is None and not keeps_messages:
                await _refuse_with_messages(store, kind, shard, entity_id)
            await write_state(store, kind, shard, entity_id, new, ends_reminders=data is None)
            return bool(alone)

    was_stored = asyncio.run(write())
    if data is None and not was_stored:
        output.note(_nothing_stored(kind, entity_id))
        return
    change = "removed" if data is None else f"{output.counted(len(data), 'byte')} set"
    output.note(f"{kind} {entity_id!r}: {change}")
