"""The version of the application that this node runs.

A member keeps its version for life, and other nodes place shards by it from the moment it joins. So
an application that has to fetch the version, from a file of the image or from the platform, is
asked before the node listens and joins.

    `node.version` is set     ──> that version, whatever else could give one
    `kubernetes.revision`     ──> the revision of the Deployment, by the API server of Kubernetes
    `@bus.version`            ──> its result
    none of them              ──> 0.0.0

One that must be fetched is there within `node.version_timeout`, or the node does not start.

Source: docs/how-to/operate.md; B.147.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardbus.backoff import doubling
from shardbus.config.settings import KubernetesSettings, NodeSettings
from shardbus.error_text import callable_name, described, shown
from shardbus.errors import ConfigError
from shardbus.guarded_log import GuardedLog
from shardbus.sharding.versions import LENGTH_MAX
from shardbus.transport.kubernetes_api import PodApi

VersionSource = Callable[[], Any]
"""Returns a version or an awaitable of one; None for no version."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 5.0
"""Between two questions to the API server."""

log = GuardedLog("shardbus.node")


def version_source(
    kubernetes: KubernetesSettings, application: VersionSource | None
) -> VersionSource | None:
    """Return the source of this node's version, if `node.version` has none.

    Raises:
        ConfigError: the revision is requested, and this process is in no pod.
    """
    return DeploymentRevision(kubernetes) if kubernetes.revision else application


class DeploymentRevision:
    """Gives the revision of the Deployment of this node's pod.

    Raises:
        ConfigError: this process is in no pod.
    """

    def __init__(self, kubernetes: KubernetesSettings) -> None:
        self._pod = PodApi(kubernetes, os.environ)

    async def __call__(self) -> str:
        """Return the revision. The caller sets the deadline.

        Raises:
            ConfigError: the pod has none, or the API server does not find it.
        """
        failures, reported = 0, ""
        while True:
            revision = await self._pod.revision()
            if isinstance(revision, str):
                return revision
            if revision.final:
                raise ConfigError(revision.text)
            failures += 1
            if revision.text != reported:
                log.warning("the revision of the Deployment is not known yet: %s", revision.text)
            reported = revision.text
            await asyncio.sleep(doubling(PAUSE_FIRST_S, PAUSE_MAX_S, failures))


async def with_version(settings: NodeSettings, source: VersionSource | None) -> NodeSettings:
    """The settings with the version to use.

    Raises:
        ConfigError: the source fails, is late, or returns an invalid version.
    """
    if source is None or settings.version != NodeSettings().version:
        return settings
    name = callable_name(source)
    limit = asyncio.timeout(settings.version_timeout)
    try:
        async with limit:
            answer = source()
            if inspect.isawaitable(answer):
                answer = await answer
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as e:
        if limit.expired():
            raise ConfigError(
                f"{name} has returned no version within {settings.version_timeout:g} s",
                hint="set node.version, or a longer node.version_timeout",
            ) from None
        text = f"{name} failed to return a version: {described(e)}"
        raise ConfigError(text[:300], hint="set node.version") from e
    if answer is None:
        return settings
    if not isinstance(answer, str) or not 0 < len(answer) <= LENGTH_MAX or not answer.isprintable():
        raise ConfigError(
            f"{name} returned {shown(answer, 60)}, which is no version",
            hint=f"a version is a text of 1 to {LENGTH_MAX} characters",
        )
    return replace(settings, version=answer)
