"""Entities as type checkers see them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.declaring import Counter

ROOT = Path(__file__).resolve().parents[2]


def test_a_handler_is_a_plain_method_inside_its_entity() -> None:
    class Adds(Counter):
        def twice(self) -> object:
            return self.add(2)

    assert Adds().twice() == 2


TYPED = """
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
"""


def mypy(path: Path, extra: str) -> tuple[int, str]:
    file = path / "typed.py"
    file.write_text(TYPED + extra)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file="]
    command += ["--cache-dir", str(ROOT / ".mypy_cache" / "tests"), str(file)]
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_type_checkers_know_handlers(tmp_path: Path) -> None:
    code, said = mypy(tmp_path, "")
    assert (code, said) == (0, "")


def test_type_checkers_refuse_what_does_not_fit(tmp_path: Path) -> None:
    code, said = mypy(
        tmp_path,
        """
async def misuse(client: AsyncClient) -> None:
    ref = client.ref(Counter, "page-7")
    await ref.add("x")
    total: str = await ref.add(2)
    await ref.missing()
    await ref.add.tell("x")
""",
    )
    assert code == 1
    lines = [line for line in said.splitlines() if "error:" in line]
    kinds = [line.rpartition("[")[2] for line in lines]
    assert kinds == ["arg-type]", "assignment]", "attr-defined]", "arg-type]"], said
