"""The version of the application that this node runs.

A member keeps its version for life, and other nodes place shards by it from the moment it joins. So
an application that has to fetch the version, from a file of the image or from the platform, is
asked before the node listens and joins.

    `node.version` is set  ──> that version, whatever else could give one
    `@bus.version`         ──> its result, within `node.version_timeout`; without, no start
    neither                ──> 0.0.0

Source: docs/how-to/operate.md.
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
"""Returns a version or an awaitable of one; None for no version."""


async def with_version(settings: NodeSettings, source: VersionSource | None) -> NodeSettings:
    """The settings with the version to use.

    Raises:
        ConfigError: the source fails, is late, or returns an invalid version.
    """
    if source is None or settings.version != NodeSettings().version:
        return settings
    name = getattr(source, "__qualname__", "") or type(source).__name__
    limit = asyncio.timeout(settings.version_timeout)
    try:
        async with limit:
            found = source()
            if inspect.isawaitable(found):
                found = await found
    except Exception as e:
        if limit.expired():
            raise ConfigError(
                f"{name} has returned no version within {settings.version_timeout:g} s",
                hint="set node.version, or a longer node.version_timeout",
            ) from None
        text = f"{name} failed to return a version: {type(e).__name__}: {e}"
        raise ConfigError(text[:300], hint="set node.version") from e
    if found is None:
        return settings
    if not isinstance(found, str) or not 0 < len(found) <= LENGTH_MAX or not found.isprintable():
        shown = repr(found)[:60]
        raise ConfigError(
            f"{name} returned {shown}, which is no version",
            hint=f"a version is a text of 1 to {LENGTH_MAX} characters",
        )
    return replace(settings, version=found)
