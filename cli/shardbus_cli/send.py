"""`tell` and `ask`: send one message from the command line.

    shardbus ask counter page-7 add 2          the handler `add`, with the argument 2
    shardbus ask counter page-7 total          the handler `total`, without arguments
    shardbus tell counter page-7 '{"n": 1}'    a message for `receive`
    shardbus ask counter page-7 '"get"'        the message "get" for `receive`

The first word after the id is a handler's name if it is a Python name and not a JSON value. The
words after it are its arguments in order; a word that is not JSON is a string.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from shardbus_cli import output, parameters
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp

if TYPE_CHECKING:
    from shardbus import AsyncClient

T = TypeVar("T")

ADDRESSES_MAX = 5
DEFAULT_TIMEOUT_S = 5.0
CRC32 = "crc32/"
USABLE = ("up", "weakly_up", "leaving", "joining", "exiting")
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[METHOD] [JSON]...", help="A handler and its arguments, or a message."),
]


Timeout = Annotated[
    float,
    parameters.duration(
        "Longest wait for the answer or receipt: 2, 2s, 100ms.", DEFAULT_TIMEOUT_S, 0.001
    ),
]


To = Annotated[
    str | None,
    typer.Option(help="Router, for a type with instances: all, nearest, random, ..."),
]


def value_of(word: str) -> Any:
    """Return the JSON value of a word, or the word itself if it is not JSON."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def parse_words(words: list[str]) -> tuple[str | None, list[Any]]:
    """Return the handler (None: a message for `receive`) and the values."""
    for word in words:
        if word.startswith("--"):
            raise CommandFailure(
                f"no such option: {word}", f"write a string as '\"{word}\"'", code=ExitCode.USAGE
            )
    if not words:
        raise CommandFailure(
            "nothing to send", "give a METHOD, or a JSON message", code=ExitCode.USAGE
        )
    first = value_of(words[0])
    if first == words[0] and words[0].isidentifier() and not keyword.iskeyword(words[0]):
        return words[0], [value_of(word) for word in words[1:]]
    if len(words) > 1:
        raise CommandFailure(
            f"{words[0]!r} is no handler's name", "a message is one JSON value", code=ExitCode.USAGE
        )
    return None, [first]


def tell(
    entity_type: parameters.EntityType,
    entity_id: parameters.EntityId,
    words: Words = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    to: To = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
    secret: parameters.Secret = None,
) -> None:
    """Send a message and return when a node has it."""
    import asyncio

    method, values = parse_words(words or [])
    kind = _kind(node, entity_type, entity_id)

    async def send(client: AsyncClient) -> None:
        try:
            async with asyncio.timeout(timeout):
                sender = client if to is None else client.to(to)
                if method is not None:
                    await sender.cast(kind, entity_id, method, *values)
                else:
                    await sender.tell(kind, entity_id, *values)
                await client.flush()
        except TimeoutError:
            raise _not_taken(client, entity_type, entity_id, timeout) from None

    _with_client(node, timeout, secret, send)


def _not_taken(
    client: AsyncClient, entity_type: str, entity_id: str, wait: float
) -> CommandFailure:
    """Return the failure for a tell that no node acknowledged. It may arrive while the client
    closes."""
    why = "its shard has no home" if client.buffered else "its home does not acknowledge it"
    return CommandFailure(
        f"no node has the message for {entity_type!r} {entity_id!r} within {wait:g} s: {why}",
        "it may still arrive; see `shardbus explain TYPE ID`",
    )


def ask(
    entity_type: parameters.EntityType,
    entity_id: parameters.EntityId,
    words: Words = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    to: To = None,
    node: parameters.NodeUrl = parameters.NODE_URL,
    secret: parameters.Secret = None,
    as_json: parameters.AsJson = False,
) -> None:
    """Send a message and print the answer, always as JSON."""
    method, values = parse_words(words or [])
    reply = answer_of(node, entity_type, entity_id, method, values, timeout, secret, to)
    output.data(as_text(reply))


def answer_of(
    node: str,
    entity_type: str,
    entity_id: str,
    method: str | None,
    values: list[Any],
    timeout: float,
    secret: Path | None,
    to: str | None = None,
) -> Any:
    """Return the answer of an entity to a handler's name with its arguments, or to a message for
    `receive`, as JSON can show it.

    Raises:
        CommandFailure: the answer is an error, or none came.
    """
    from shardbus.errors import RequestError, advice_of

    kind = _kind(node, entity_type, entity_id)

    async def send(client: AsyncClient) -> object:
        sender = client if to is None else client.to(to)
        if method is not None:
            answer = await sender.call(kind, entity_id, method, *values)
        else:
            answer = await sender.ask(kind, entity_id, *values)
        return plain(answer)

    try:
        return _with_client(node, timeout, secret, send)
    except RequestError as error:
        failure = CommandFailure.of(error)
        raise CommandFailure(
            failure.message, failure.hint or advice_of(error), code=failure.code
        ) from None


def plain(answer: object) -> object:
    """Return an answer as JSON can show it: an error of one instance, in an answer of all of them,
    by its class and text."""
    if not isinstance(answer, dict):
        return answer
    return {
        key: {"error": type(value).__name__, "message": str(value)}
        if isinstance(value, Exception)
        else value
        for key, value in answer.items()
    }


def as_text(reply: object) -> str:
    """Return the answer as JSON on one line. Bytes are Base64; an extension, and a map with tuples
    as keys, are as in an export."""
    from shardbus.wire.plain_json import shown_json

    return shown_json(reply)


def _with_client(
    url: str,
    timeout: float,
    secret: Path | None,
    work: Callable[[AsyncClient], Awaitable[T]],
) -> T:
    """Run `work` with a client of the node's cluster."""
    import asyncio

    cluster, addresses = _members(NodeHttp(url))

    async def run() -> T:
        from shardbus import AsyncClient
        from shardbus.errors import NodeLost

        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with AsyncExitStack() as stack:
            try:
                client = await stack.enter_async_context(
                    AsyncClient(*addresses, cluster=cluster, timeout=timeout, secret=secret)
                )
            except NodeLost as lost:
                raise CommandFailure(
                    lost.message,
                    "HTTP answers, but the port of messages does not: check the firewall",
                    code=ExitCode.UNREACHABLE,
                ) from None
            client.timeout_ms = max(0, int((deadline - loop.time()) * 1000))
            return await work(client)

    return asyncio.run(run())


def _kind(url: str, name: str, entity_id: str) -> str | type:
    """Return how a client names the type. A type with its own shard function needs a class; the
    command has none, but a node has the shard of this entity, so a class is made for it."""
    node = NodeHttp(url)
    rows = node.read("v1", "types").get("types", ())
    layout = next((str(r.get("layout", CRC32)) for r in rows if r.get("type") == name), CRC32)
    if layout.startswith(CRC32):
        return name
    from shardbus.sharding.instances import Instances, split_row
    from shardbus.wire.schema import Interface

    shard = str(node.read("v1", "where", name, entity_id).get("shard"))
    interface = Interface(name, 0, layout)
    row = next(row for row in rows if row.get("type") == name)
    if row.get("instances"):
        shard = split_row(shard)[0]
        interface.instances = Instances(exact=row["instances"])
        interface.router = str(row["router"])
    interface.shard_of = lambda _: shard
    return type(name, (), {"__shardbus_interface__": interface})


def _members(node: NodeHttp) -> tuple[str, list[str]]:
    """Return the cluster's name, and addresses of members, those that are up first."""
    cluster = str(node.read("v1", "cluster").get("cluster", ""))
    members = [
        member
        for member in node.read("v1", "nodes").get("nodes", ())
        if member.get("reachable") and member.get("status") in USABLE
    ]
    members.sort(key=lambda member: USABLE.index(member["status"]))
    if not members:
        raise CommandFailure(
            f"the cluster at {node.url} has no reachable member",
            "see `shardbus nodes`",
            code=ExitCode.UNREACHABLE,
        )
    return cluster, [f"tcp://{member['address']}" for member in members[:ADDRESSES_MAX]]
