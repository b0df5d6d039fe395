"""Writes `docs/reference/settings.md` from the declarations in `shardbus/config/settings.py`.

    python docs/make_reference.py

A test compares the page with this script's output, so that neither can change alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from shardbus.config.loading import variable_of
from shardbus.config.options import Option, ValueType, option_of
from shardbus.config.settings import Settings

PAGE = Path(__file__).parent / "reference" / "settings.md"

NO_EFFECT: Mapping[str, str] = {
    "sharding.shards": "refused when it differs from the class, which clients compute with",
}
"""Settings that are declared and checked, and do less than their name says."""

INTRO = """\
# Settings

Made by `docs/make_reference.py` from the declarations; do not edit.

A setting comes from a TOML file, then the environment, then the command line; the later wins.

    [cluster.failure_detector]                            in the file given by -c
    threshold = 12

    SHARDBUS_CLUSTER__FAILURE_DETECTOR__THRESHOLD=12      in the environment
    --set cluster.failure_detector.threshold=12           on the command line

An unknown key, an unknown `SHARDBUS_*` variable and a value out of range are refused with the
closest known name. `shardbus config show --origin` shows each value and who set it.

Durations take seconds, or `100ms`, `2s`, `1m`, `24h`, `1d`. Sizes take bytes, or `64KiB`, `64MiB`,
`1GB`. Lists take `["a", "b"]`, or `a,b` in a variable. Where the range says «or off», `off` and 0
turn the thing off.

For one entity type the settings of `sharding` count in this order, the later wins: the defaults,
section `sharding`, what `@bus.entity(...)` declares, section `sharding.types.<name>`. A type that
the application does not have is refused when a node starts, and by `shardbus check`.

A cell in *italics* says that a setting does less than its name promises.
"""

CLOSING = f"""\
Each setting has a variable, its key in capitals with two underscores for each dot, as in
`{variable_of("node.port")}`. What follows `SHARDBUS_SHARDING__TYPES__` is the type's name in any
case, unless two types differ in nothing else. `SHARDBUS_NODE_URL`, `SHARDBUS_NODE_TOKEN`,
`SHARDBUS_NODE_TOKEN_FILE` and `SHARDBUS_NODE_CACERT` are read by the commands that ask a node, and
`SHARDBUS_APP` and `SHARDBUS_CLUSTER` name what a command is about; they are no settings.

Variables in the form of service links, which Kubernetes makes for each Service of a namespace and
Docker for `--link`, are no settings either, and are ignored: `SHARDBUS_PORT=tcp://10.43.7.9:7355`,
`SHARDBUS_HTTP_SERVICE_HOST=10.43.7.9`. `SHARDBUS_NODE_PORT=7355` has not that form, and is refused.
"""


def render() -> str:
    """The whole page."""
    parts = [INTRO, *(f"- [{name}](#{name.replace('.', '')})" for name, _ in SECTIONS), ""]
    for name, section in SECTIONS:
        parts.append(f"## {name}\n\n{' '.join((section.__doc__ or '').split())}\n")
        parts.append("| setting | kind | default | range | meaning |\n|---|---|---|---|---|")
        parts.append("\n".join(_row(name, declared) for declared in _declared(section)) + "\n")
    return "\n".join([*parts, CLOSING])


def _sections(section: type, key: str) -> Iterator[tuple[str, type]]:
    """Every section with settings of its own, by its dotted key."""
    if key:
        yield key, section
    for declared in fields(section):
        nested: Any = declared.default_factory
        if is_dataclass(nested):
            yield from _sections(nested, f"{key}.{declared.name}".lstrip("."))


def _declared(section: type) -> list[Field[Any]]:
    return [declared for declared in fields(section) if option_of(declared)]


def _row(section: str, declared: Field[Any]) -> str:
    option = option_of(declared)
    assert option is not None
    note = NO_EFFECT.get(f"{section}.{declared.name}", "")
    meaning = f"{option.meaning}. *{note}*" if note else option.meaning
    cells = (f"`{declared.name}`", option.kind.value, _default(option, declared), _range(option))
    return f"| {' | '.join(cells)} | {meaning} |"


def _default(option: Option, declared: Field[Any]) -> str:
    match option.kind:
        case ValueType.NAMES | ValueType.COUNTS:
            return "empty"
        case ValueType.FLAG:
            return f"`{str(declared.default).lower()}`"
        case ValueType.TEXT:
            return f"`{declared.default}`" if declared.default else "empty"
        case _ if option.off and not declared.default:
            return "`off`"
        case ValueType.SECONDS:
            return f"`{declared.default:g}s`"
        case ValueType.SIZE:
            return f"`{_binary(declared.default)}`"
        case _:
            return f"`{declared.default:g}`"


def _range(option: Option) -> str:
    if option.choices:
        choices = ", ".join(f"`{choice}`" for choice in option.choices)
        return f"{choices}, or `module:name`" if option.named else choices
    if option.kind in (ValueType.TEXT, ValueType.FLAG, ValueType.NAMES):
        return ""
    off = ", or off" if option.off else ""
    match option.kind:
        case ValueType.SECONDS:
            return f"from {option.low:g} s{off}"
        case ValueType.SIZE:
            return f"from {_binary(int(option.low))}{off}"
        case _ if option.high >= 2**31:
            return f"from {option.low:g}{off}"
        case _:
            return f"{option.low:g} to {option.high:g}{off}"


def _binary(size: int) -> str:
    for unit in ("", "KiB", "MiB", "GiB"):
        if size < 1024 or size % 1024:
            return f"{size}{unit}"
        size //= 1024
    return f"{size}TiB"


SECTIONS = tuple(_sections(Settings, ""))
"""Every section with settings of its own, by its dotted key."""


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
