"""The limit on the size of a state, its compression, and the sizes of the states in memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from shardbus import Entity, ShardBus, StateTooLarge, handler
from shardbus.errors import EntityFailed
from shardbus.testing import EntityProbe
from shardbus.wire.schema import encode_value

bus = ShardBus("shop")


@dataclass
class Text:
    text: str = ""


@bus.entity("note", state_limit="10KiB")
class Note(Entity):
    state: Text

    @handler
    async def write(self, text: str) -> str:
        self.state.text = text
        try:
            await self.save()
        except StateTooLarge as error:
            return f"{error.entity_type} {error.entity_id} {error.size} {error.limit}"
        return ""

    @handler
    async def insist(self, text: str) -> None:
        self.state.text = text
        await self.save()

    @handler
    async def erase(self) -> None:
        await self.clear()

    @handler
    def read(self) -> int:
        return len(self.state.text)

    @handler
    def leave(self) -> None:
        self.context.stop()


@bus.entity("short", state_limit="10KiB", state_compression="zlib")
class Short(Entity):
    state: Text

    @handler
    async def write(self, text: str) -> None:
        self.state.text = text
        await self.save()


async def test_a_state_above_the_limit_is_refused_before_the_store_is_asked() -> None:
    async with EntityProbe(Note, "n", state=Text("old")) as probe:
        size = len(encode_value(Text("x" * 20_000)))
        assert await probe.ask("write", "x" * 20_000) == f"note n {size} 10240"
        assert StateTooLarge.definite
        assert probe.saved == Text("old")
        assert await probe.ask("write", "new") == ""
        with pytest.raises(EntityFailed, match="StateTooLarge: the state of") as failed:
            await probe.ask("insist", "x" * 20_000)
        assert "the limit is 10240" in failed.value.message
        assert await probe.ask("read") == len("new"), "it starts again with what is stored"
        assert probe.saved == Text("new")


async def test_a_type_may_compress_its_states() -> None:
    async with EntityProbe(Short, "s") as probe:
        await probe.ask("write", "x" * 20_000)
        assert probe.saved == Text("x" * 20_000)
        row = probe.cluster.store._server.data.states["short", "s"]
        assert row.data is not None
        assert len(row.data) < 1000


async def test_the_size_of_each_state_in_memory_is_counted() -> None:
    async with EntityProbe(Note, "n", state=Text("x" * 100)) as probe:
        sizes = probe._host.saver.sizes
        assert sizes is not None
        assert sizes.total == 0
        await probe.ask("read")
        assert sizes.total == len(encode_value(Text("x" * 100)))
        await probe.ask("write", "y")
        await probe.client.ask(Note, "other", "insist", "z" * 50)
        both = len(encode_value(Text("y"))) + len(encode_value(Text("z" * 50)))
        assert sizes.total == both
        await probe.ask("erase")
        assert sizes.total == len(encode_value(Text("z" * 50)))
        await probe.client.ask(Note, "other", "leave")
        await probe.advance(1)
        assert sizes.total == 0
