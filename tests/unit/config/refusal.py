"""How tests read the refusal of settings."""

from __future__ import annotations

import pytest

from shardbus.config.loading import (
    load,
)
from shardbus.errors import ConfigError


def refusal(*layers: tuple[str, object]) -> str:
    with pytest.raises(ConfigError) as refused:
        load(layers)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    return str(refused.value)
