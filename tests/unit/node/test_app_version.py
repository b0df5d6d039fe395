"""The version that a node declares, and a node without a version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardbus import ShardBus
from shardbus.config.settings import NodeSettings
from shardbus.errors import ConfigError
from shardbus.node.app_version import with_version


async def found(source: Any, **settings: Any) -> str:
    return (await with_version(NodeSettings(**settings), source)).version


async def later() -> str:
    await asyncio.sleep(0)
    return "1.2"


async def never() -> str:
    return await asyncio.get_running_loop().create_future()


def fails() -> str:
    raise OSError("no such file")


async def test_B19_the_application_says_the_version_at_once_or_later() -> None:
    assert await found(None) == "0.0.0"
    assert await found(lambda: "1.1") == "1.1"
    assert await found(later) == "1.2"
    assert await found(lambda: None) == "0.0.0"


async def test_what_the_settings_say_counts_more_and_nobody_is_asked() -> None:
    assert await found(fails, version="2.0") == "2.0"


@pytest.mark.parametrize("said", ["", "a\nb", 7, "9" * 201])
async def test_what_is_no_version_is_refused(said: object) -> None:
    with pytest.raises(ConfigError, match="which is no version"):
        await found(lambda: said)


async def test_a_source_that_fails_or_is_late_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError, match="fails failed to return a version: OSError: no"):
        await found(fails)
    with pytest.raises(ConfigError, match=r"never has returned no version within 0\.01 s"):
        await found(never, version_timeout=0.01)


def test_one_function_says_it() -> None:
    bus = ShardBus("shop")
    assert bus.version(later) is later
    with pytest.raises(ConfigError, match="two functions"):
        bus.version(fails)
