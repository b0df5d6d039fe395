"""Which version of the application this node runs, if the settings do not say it.

A version is a member's for life, for a process does not change its code, and others place shards by
it from the first moment on. So whoever has to ask for it first, a file of the image or the platform
that runs the node, asks before the node listens and joins.

    `node.version` is set  ──> that counts, whoever else would say one
    `@bus.version`         ──> its answer, within `node.version_timeout`, or the node does not start
    neither                ──> 0.0.0

Source: B.19, B.147; docs/how-to/operate.md.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardbus.config.settings import NodeSettings
from shardbus.errors import ConfigError
from shardbus.sharding.versions import LENGTH_MAX

VersionSource = Callable[[], Any]
"""Gives a version, or an awaitable of one; None if it knows none."""


async def with_version(settings: NodeSettings, source: VersionSource | None) -> NodeSettings:
    """The settings with the version that counts.

    Raises:
        ConfigError: the source fails, is late, or says what is no version.
    """
    if source is None or settings.version != NodeSettings().version:
        return settings
    name = getattr(source, "__qualname__", "") or type(source).__name__
    limit = asyncio.timeout(settings.version_timeout)
    try:
        async with limit:
            said = source()
            if inspect.isawaitable(said):
                said = await said
    except Exception as e:
        if limit.expired():
            raise ConfigError(
                f"{name} has not said within {settings.version_timeout:g} s which version this is",
                hint="set node.version, or a longer node.version_timeout",
            ) from None
        text = f"{name} cannot say which version this is: {type(e).__name__}: {e}"
        raise ConfigError(text[:300], hint="set node.version") from e
    if said is None:
        return settings
    if not isinstance(said, str) or not 0 < len(said) <= LENGTH_MAX or not said.isprintable():
        shown = repr(said)[:60]
        raise ConfigError(
            f"{name} says {shown}, which is no version",
            hint=f"a version is a text of 1 to {LENGTH_MAX} characters",
        )
    return replace(settings, version=said)
