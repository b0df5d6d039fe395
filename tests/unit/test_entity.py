"""Entities as type checkers see them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from shardbus import handler
from shardbus.errors import LocalProtocolError
from tests.unit.declaring import Counter

ROOT = Path(__file__).resolve().parents[2]


def test_a_handler_is_a_plain_method_inside_its_entity() -> None:
    class Adds(Counter):
        def twice(self) -> object:
            return self.add(2)

    assert Adds().twice() == 2


def test_a_subclass_calls_the_handler_of_its_base_by_the_class() -> None:
    class Doubles(Counter):
        @handler
        def add(self, amount: int = 1) -> int:
            base: Any = Counter
            return int(base.add(self, amount=2 * amount))

    assert Doubles().add(2) == 4


async def test_a_mock_of_the_class_stands_for_a_reference() -> None:
    counter = create_autospec(Counter, instance=True)
    counter.add.return_value = 7
    assert await counter.add(2) == 7
    counter.add.assert_called_once_with(2)
    for verb in ("tell", "deliver", "deliver_nowait", "ask"):
        await getattr(counter.add, verb)(2)
    counter.add.tell.assert_awaited_once_with(2)
    counter.add.tell_nowait(2)
    with pytest.raises(AttributeError):
        counter.nosuch()


@pytest.mark.parametrize("verb", ["tell", "tell_nowait", "deliver", "deliver_nowait", "ask"])
def test_the_class_has_no_verbs_of_a_reference(verb: str) -> None:
    of_class: Any = Counter.add
    with pytest.raises(LocalProtocolError, match=f"add.{verb} is a verb of a reference") as error:
        getattr(of_class, verb)(2)
    assert error.value.hint is not None


TYPED = """
from typing import assert_type

from shardbus import AsyncClient, Client, Entity, ShardBus, handler

bus = ShardBus("shop")


@bus.entity(name="counter")
class Counter(Entity):
    def __init__(self) -> None:
        self.value = 0

    @handler
    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    @handler
    async def name(self) -> str:
        return "x"

    @handler(thread=True)
    def blocking(self, text: str) -> bytes:
        return text.encode()

    async def inside(self) -> int:
        other = self.context.ref(Counter, "other")
        return await other.add(1)


async def use(client: AsyncClient) -> None:
    ref = client.ref(Counter, "page-7")
    total: int = await ref.add(2)
    name: str = await ref.name()
    raw: bytes = await ref.blocking("x")
    await ref.add.tell(1)
    ref.add.tell_nowait(1)
    own: int = await bus.ref(Counter, "x").add()
    assert_type(await ref.to("nearest").add(1), int)


def block(client: Client) -> None:
    ref = client.ref(Counter, "page-7")
    assert_type(ref.add(2), int)
    assert_type(ref.add(amount=2), int)
    assert_type(ref.name(), str)
    assert_type(ref.blocking("x"), bytes)
    assert_type(ref.to("nearest").add(1), int)
    assert_type(ref.to("hash", key="a").name(), str)
    ref.add.tell(1)
    ref.add.tell_nowait(1)
    ref.to("all").add(1)
"""
MISUSE = """
async def misuse(client: AsyncClient) -> None:
    ref = client.ref(Counter, "page-7")
    await ref.add("x")
    total: str = await ref.add(2)
    await ref.missing()
    await ref.add.tell("x")


async def misuse_blocking(client: Client) -> None:
    ref = client.ref(Counter, "page-7")
    ref.add("x")
    total: str = ref.add(2)
    await ref.add(2)
    ref.missing()
    ref.add.tell("x")
    ref.to("nowhere")
"""
OPTIONS = """
from shardbus import Handoff, LeastShard, Passivation


@bus.entity
class Bare(Counter):
    @handler
    def twice(self, amount: int) -> int:
        return 2 * amount


@bus.entity("full", shards=7, remember=True, passivate_after="10m", handoff=Handoff(), role="web")
class Full(Counter): ...


@bus.entity(state_ttl=None, allocation=LeastShard(), passivation=Passivation.never(), instances=2)
class Other(Counter): ...


async def use_bare(client: AsyncClient) -> None:
    assert_type(await client.ref(Bare, "page-7").twice(1), int)
"""
WRONG_OPTIONS = """
bus.entity(remeber=True)
bus.entity(shards="many")
bus.entity(handoff="orderly")
bus.entity(passivate_after=[1])


@bus.entity(router="neerest")
class Wrong(Counter): ...
"""
FORGOTTEN = """
async def forget(client: AsyncClient) -> None:
    client.ref(Counter, "page-7").add(2)
    client.ref(Counter, "page-7").add.tell_nowait(2)
"""


def mypy(files: list[Path], *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file="]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "tests"), *options, *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_type_checkers_know_handlers(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(TYPED + OPTIONS)
    code, said = mypy([file])
    assert (code, said) == (0, "")


def test_type_checkers_refuse_misuse_and_options_of_entities_that_do_not_exist(
    tmp_path: Path,
) -> None:
    """One run for both programs: most of its time goes into the package."""
    misuse, wrong_options = tmp_path / "misuse.py", tmp_path / "wrong_options.py"
    misuse.write_text(TYPED + MISUSE)
    wrong_options.write_text(TYPED + WRONG_OPTIONS)
    code, said = mypy([misuse, wrong_options])
    assert code == 1
    errors = [line for line in said.splitlines() if "error:" in line]
    kinds = [line.rpartition("[")[2].rstrip("]") for line in errors if misuse.name in line]
    assert kinds == [
        *("arg-type", "assignment", "attr-defined", "arg-type"),
        *("arg-type", "assignment", "misc", "attr-defined", "arg-type", "call-overload"),
    ], said
    said = "\n".join(line for line in said.splitlines() if wrong_options.name in line)
    for name in ("remeber", "shards", "handoff", "passivate_after", "router"):
        assert name in said
    assert said.count("error:") == 5, said
    assert "overload" not in said, "the text for an overload lists every option"
    assert 'Unexpected keyword argument "remeber" for "entity"' in said


@pytest.mark.long
def test_type_checkers_find_an_ask_that_is_not_awaited(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(TYPED + FORGOTTEN)
    code, said = mypy([file], "--enable-error-code=unused-awaitable")
    assert code == 1
    assert said.count("error:") == 1, said
    assert "[unused-awaitable]" in said


@pytest.mark.long
def test_another_type_checker_agrees(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    command = [Path(sys.executable).parent / "basedpyright", "--outputjson"]
    command += ["--pythonpath", sys.executable, "--project", tmp_path]

    def rules() -> list[str]:
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
        errors = json.loads(done.stdout)["generalDiagnostics"]
        return [row.get("rule", row["message"]) for row in errors if row["severity"] == "error"]

    file.write_text(TYPED + OPTIONS)
    assert rules() == []
    file.write_text(TYPED + WRONG_OPTIONS)
    assert rules() == ["reportCallIssue", *["reportArgumentType"] * 4]
    file.write_text(TYPED + MISUSE)
    assert rules() == [
        *("reportArgumentType", "reportAssignmentType", "reportAttributeAccessIssue"),
        *("reportArgumentType", "reportArgumentType", "reportAssignmentType"),
        *("reportGeneralTypeIssues", "reportAttributeAccessIssue", "reportArgumentType"),
        *("reportCallIssue", "reportArgumentType"),
    ]
