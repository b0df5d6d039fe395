"""The settings of a node as rows for people: key, value and who set it. Secrets are masked. Pure.

Source: docs/reference/settings.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardbus.config.loading import options
from shardbus.config.settings import Settings
from shardbus.store.urls import mask_url

SUSPEND_AFTER, STABLE_AFTER = "cluster.suspend_after", "cluster.downing.stable_after"
DEFAULT, APPLICATION = "default", "the application"


def rows_of(settings: Settings, origins: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """Return every setting as `setting`, `value` and `origin`.

    Args:
        origins: who set each value, by its key; the others are defaults. None if that is unknown:
            values other than the defaults were set by the application.
    """
    values = dict(_shown_values(settings))
    if origins is None:
        usual = dict(_shown_values(Settings()))
        origins = {k: APPLICATION for k, v in values.items() if k not in usual or usual[k] != v}
    places = {**dict.fromkeys(values, DEFAULT), **origins}
    if not settings.cluster.suspends:
        places[SUSPEND_AFTER] += ", no effect: no node suspends with this way of downing"
    elif not settings.cluster.suspend_after:
        places[SUSPEND_AFTER] = f"4/5 of {STABLE_AFTER} ({places[STABLE_AFTER]})"
    return [{"setting": k, "value": v, "origin": places[k]} for k, v in values.items()]


def _shown_values(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Yield every setting with its key. Tokens and the passwords in URLs are masked, and a value
    that is derived from others stands for itself."""
    for key, option in options():
        value: Any = settings
        for part in key.split("."):
            value = getattr(value, part)
        if key == "store.url":
            value = mask_url(value)
        elif option.secret and value:
            value = "***"
        elif key == SUSPEND_AFTER and settings.cluster.suspends:
            value = settings.cluster.contact_lifetime
        yield key, value
    for name, overrides in settings.sharding.types.items():
        for key, value in overrides.items():
            yield f"sharding.types.{name}.{key}", value
