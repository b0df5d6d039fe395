"""`tell` and `ask`: the meaning of the words, and the message's way."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import pytest

import shardbus
from shardbus.errors import (
    AskTimeout,
    EntityFailed,
    MailboxFull,
    NodeLost,
    Rejection,
    SchemaError,
    Unhandled,
)
from shardbus_cli import send
from shardbus_cli.exit_codes import CommandFailure, ExitCode


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["add", "2"], ("add", [2])),
        (["add", "2", '{"a": [1]}', "text", "null"], ("add", [2, {"a": [1]}, "text", None])),
        (["add", "-5"], ("add", [-5])),
        (["total"], ("total", [])),
        (['"get"'], (None, ["get"])),
        (['{"n": 1}'], (None, [{"n": 1}])),
        (["true"], (None, [True])),
        (["12"], (None, [12])),
        (["two words"], (None, ["two words"])),
    ],
)
def test_words_are_a_handler_with_arguments_or_a_message(words, meant):
    assert send.parse_words(words) == meant


@pytest.mark.parametrize(
    "words", [[], ["1", "2"], ["a-b", "1"], ["add", "--timeot"], ["class", "1"]]
)
def test_words_that_mean_nothing(words):
    with pytest.raises(CommandFailure) as failed:
        send.parse_words(words)
    assert failed.value.code is ExitCode.USAGE


@dataclass
class Full(Rejection):
    seats: int


class FakeClient:
    """Remembers sent messages, and answers 42."""

    last: FakeClient
    buffered = 0

    def __init__(self, *addresses: str, cluster: str, timeout: float, secret: str) -> None:
        assert not secret
        self.sent: list[tuple[object, ...]] = [("connect", addresses, cluster, timeout)]
        FakeClient.last = self

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sent.append(("close",))

    async def tell(self, *args: object) -> None:
        self.sent.append(("tell", *args))

    async def ask(self, *args: object) -> object:
        self.sent.append(("ask", *args))
        return {"answer": 42, "raw": b"\x00"}

    async def flush(self) -> None:
        self.sent.append(("flush",))
        if self.buffered:
            await asyncio.Event().wait()

    async def call(self, *args: object) -> object:
        self.sent.append(("call", *args))
        return {"answer": 42, "raw": b"\x00"}

    async def cast(self, *args: object) -> None:
        self.sent.append(("cast", *args))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    monkeypatch.setattr(shardbus, "AsyncClient", FakeClient)
    return FakeClient


def test_ask_finds_the_cluster_by_http_and_prints_the_answer(shell, url, client):
    words = ("ask", "counter", "p", "add", "-5", "--timeout", "300ms")
    assert shell(*words, "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"answer": 42, "raw": "AA=="}
    assert client.last.sent == [
        ("connect", ("tcp://127.0.0.1:7355",), "shop", 0.3),
        ("call", "counter", "p", "add", -5),
        ("close",),
    ]


def test_a_handler_without_arguments_is_no_message(shell, url, client):
    assert shell("ask", "counter", "p", "total") == ExitCode.OK
    assert json.loads(shell.out)["answer"] == 42
    assert client.last.sent[1] == ("call", "counter", "p", "total")
    assert shell("tell", "counter", "p", "reset") == ExitCode.OK
    assert client.last.sent[1] == ("cast", "counter", "p", "reset")


def test_an_error_for_a_word_that_is_no_handler_has_one_hint(shell, url, client, monkeypatch):
    async def refuse(*_: object) -> object:
        raise Unhandled("counter has no handler 'gett'; did you mean get?")

    monkeypatch.setattr(FakeClient, "call", refuse)
    assert shell("ask", "counter", "p", "gett") == ExitCode.FAILED
    assert shell.err == "shardbus: counter has no handler 'gett'; did you mean get?\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Rejection("left=3", type="OutOfStock"), "OutOfStock: left=3"),
        (Rejection(type="OutOfStock"), "OutOfStock"),
        (Full(3), "Full: seats=3"),
    ],
    ids=["unknown", "without text", "known"],
)
def test_a_message_that_the_entity_refuses_is_one_line_and_code_6(
    shell, url, client, monkeypatch, error, line
):
    async def refuse(*_: object) -> object:
        raise error

    monkeypatch.setattr(FakeClient, "call", refuse)
    assert shell("ask", "counter", "p", "add") == ExitCode.REFUSED
    assert (shell.out, shell.err) == ("", f"shardbus: {line}\n")


def declined() -> Unhandled:
    error = Unhandled("takes no such int")
    error.definite = False
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MailboxFull("full"), "full; no handler has begun: it is safe to send it again"),
        (
            NodeLost("gone"),
            "gone; a handler may have run: send it again only if",
        ),
        (
            AskTimeout("late"),
            "late; a handler may have run: send it again only if",
        ),
        (declined(), "takes no such int; a handler may have run: send it again only if"),
        (EntityFailed("KeyError", "k"), "KeyError: k"),
        (SchemaError("n: expected int"), "n: expected int"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_that_may_pass_says_whether_it_is_safe_to_send_again(
    shell, url, client, monkeypatch, error, line
):
    async def fail(*_: object) -> object:
        raise error

    monkeypatch.setattr(FakeClient, "call", fail)
    assert shell("ask", "counter", "p", "add") == ExitCode.FAILED
    assert shell.out == ""
    assert shell.err.startswith(f"shardbus: {line}")
    assert ("handler" in shell.err) is ("handler" in line)


def test_a_message_for_receive(shell, url, client):
    assert shell("ask", "counter", "p", '{"n": 1}') == ExitCode.OK
    assert client.last.sent[1] == ("ask", "counter", "p", {"n": 1})


def test_tell_returns_when_a_node_has_it(shell, url, client):
    assert shell("tell", "counter", "p", "add", "2") == ExitCode.OK
    assert client.last.sent[1:] == [("cast", "counter", "p", "add", 2), ("flush",), ("close",)]
    assert shell("tell", "counter", "p", '"get"') == ExitCode.OK
    assert client.last.sent[1] == ("tell", "counter", "p", "get")
    assert shell.out == ""


def test_a_tell_that_finds_no_home_ends_in_time(shell, url, client, monkeypatch):
    monkeypatch.setattr(FakeClient, "buffered", 1)
    assert shell("tell", "counter", "p", "add", "2", "--timeout", "20ms") == ExitCode.FAILED
    said = "no node has the message for 'counter' 'p' within 0.02 s: its shard has no home"
    assert shell.err.startswith(f"shardbus: {said}; ")
    assert client.last.sent[0][3] == 0.02
    assert client.last.sent[-1] == ("close",)


@pytest.mark.parametrize("command", ["tell", "ask"])
@pytest.mark.parametrize("timeout", ["-1", "abc", "0"])
def test_a_timeout_that_is_none_is_named(shell, command, timeout):
    assert shell(command, "counter", "p", "add", "--timeout", timeout) == ExitCode.USAGE
    assert shell.err.startswith(f"shardbus {command}: --timeout: ")
    assert shell.err.endswith(f": {timeout!r}; write 2s, 100ms or seconds\n")
    assert shell.err.count("\n") == 1


def test_S0_4_the_shard_of_a_type_with_its_own_function_is_asked_of_the_node(shell, url, client):
    assert shell("ask", "book", "p", "read") == ExitCode.OK
    _, kind, *rest = client.last.sent[1]
    assert rest == ["p", "read"]
    interface = kind.__shardbus_interface__
    assert (interface.name, interface.layout) == ("book", "library.by_title/100")
    assert interface.shard_of("p") == "7"


def test_a_cluster_without_members_is_unreachable(shell, url, node, client):
    node.status = "down"
    assert shell("ask", "counter", "p", "1") == ExitCode.UNREACHABLE
