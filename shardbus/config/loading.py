"""Load settings from layers: file < environment < command line.

A layer is a mapping and the name of its origin. The caller reads the file, `os.environ` and the
arguments; this module does no I/O. An unknown key, an unknown `SHARDBUS_*` variable and a value out
of range are `ConfigError`s of one line that name the key and its origin, with the closest known
name. That also holds for values that a later layer replaces.

    key in a file     [cluster.failure_detector] threshold = 12
    environment       SHARDBUS_CLUSTER__FAILURE_DETECTOR__THRESHOLD=12
    command line      --set cluster.failure_detector.threshold=12

Source: docs/reference/settings.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, cast

from shardbus.config.options import Option, closest, option_of, read, unknown
from shardbus.config.service_links import is_service_link
from shardbus.config.settings import Settings, ShardingSettings
from shardbus.config.validation import check
from shardbus.errors import ConfigError
from shardbus.ids import check_id

Layer = tuple[str, Mapping[str, object]]
"""The name of the origin, and nested sections of settings."""

PREFIX = "SHARDBUS_"
ENVIRONMENT = "environment "
"""The first word of the origin of a value from a variable."""
CLIENT_VARIABLES = (
    "SHARDBUS_APP",
    "SHARDBUS_CLUSTER",
    "SHARDBUS_NODE_URL",
    "SHARDBUS_NODE_TOKEN",
    "SHARDBUS_NODE_TOKEN_FILE",
    "SHARDBUS_NODE_CACERT",
)
"""Variables of the commands; they are not settings."""

S = TypeVar("S")


def load(layers: Sequence[Layer] = ()) -> Settings:
    """Return the defaults, replaced by the values of the layers; a later layer wins.

    Raises:
        ConfigError: an unknown key, an invalid value, or two settings that contradict each other.
    """
    settings = _section(Settings, layers, "")
    check(settings)
    return settings


def origins(layers: Sequence[Layer]) -> dict[str, str]:
    """Return the winning origin of each dotted key that a layer sets. Other keys have defaults."""
    origin_of: dict[str, str] = {}
    for origin, values in layers:
        for key in _leaves(Settings, values, ""):
            origin_of[key] = origin
    return origin_of


def options(section: type = Settings, prefix: str = "") -> Iterator[tuple[str, Option]]:
    """Yield every setting with its dotted key, in the order of declaration."""
    for declared in fields(section):
        key = f"{prefix}{declared.name}"
        if option := option_of(declared):
            yield key, option
        elif nested := _nested(declared.default_factory):
            yield from options(nested, f"{key}.")


def from_environment(environ: Mapping[str, str]) -> list[Layer]:
    """Return one layer per `SHARDBUS_SECTION__KEY` variable, so that an error names the variable.

    Names of entity types and roles in variables are read in lower case; `for_types` finds the type.
    Variables that Kubernetes and Docker made are no settings (`service_links`).

    Raises:
        ConfigError: a `SHARDBUS_*` variable is no setting.
    """
    names = {variable_of(key) for key, _ in options()}
    layers: list[Layer] = []
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in CLIENT_VARIABLES:
            continue
        key = variable.removeprefix(PREFIX).lower().replace("__", ".")
        if variable not in names and not key.startswith(
            ("sharding.types.", "cluster.role_min_members.")
        ):
            if is_service_link(variable, environ):
                continue
            likely = closest(variable, sorted(name.lower() for name in (*names, *CLIENT_VARIABLES)))
            raise unknown("variable", variable, likely.upper(), "environment")
        layers.append((f"{ENVIRONMENT}{variable}", nested_at(key, environ[variable])))
    return layers


def for_types(layers: Sequence[Layer], types: Iterable[str]) -> list[Layer]:
    """Return the layers for an application with these entity types. A type that a variable names in
    lower case gets its own name, if only one type has that name in lower case.

    Raises:
        ConfigError: a layer has settings for an unknown type, or for one of several types that a
            variable cannot distinguish.
    """
    kinds = list(types)
    return [(origin, _renamed(origin, values, kinds)) for origin, values in layers]


def _renamed(origin: str, values: Mapping[str, object], kinds: list[str]) -> Mapping[str, object]:
    sharding = values.get("sharding")
    by_type = sharding.get("types") if isinstance(sharding, Mapping) else None
    if not isinstance(sharding, Mapping) or not isinstance(by_type, Mapping):
        return values
    named = {_type_meant(name, kinds, origin): overrides for name, overrides in by_type.items()}
    return {**values, "sharding": {**sharding, "types": named}}


def _type_meant(name: str, kinds: list[str], origin: str) -> str:
    alike = [kind for kind in kinds if kind.lower() == name]
    if name in kinds or not alike or not origin.startswith(ENVIRONMENT):
        if name in kinds:
            return name
        near = next(iter(alike), "") or closest(name, kinds)
        hint = f"did you mean {near}?" if near else f"there are {', '.join(sorted(kinds))}"
        raise ConfigError(f"sharding.types: there is no entity type {name!r} ({origin})", hint=hint)
    if len(alike) > 1:
        raise ConfigError(
            f"sharding.types.{name} ({origin}) may be {' or '.join(alike)}",
            hint="a variable is read in lower case: set it in a file or with --set",
        )
    return alike[0]


def variable_of(key: str) -> str:
    """Return the environment variable of a dotted key."""
    return PREFIX + key.upper().replace(".", "__")


def from_assignments(assignments: Iterable[str]) -> list[Layer]:
    """Return one layer per `key=value`, as given to `--set`.

    Raises:
        ConfigError: there is no `=` or no key.
    """
    layers: list[Layer] = []
    for assignment in assignments:
        key, mark, value = assignment.partition("=")
        if not mark or not key.strip():
            raise ConfigError(
                f"--set {assignment!r} has no value", hint="write --set section.key=value"
            )
        layers.append((f"--set {key.strip()}"[:100], nested_at(key.strip(), value.strip())))
    return layers


def nested_at(key: str, value: object) -> dict[str, object]:
    """Return nested mappings in which the dotted `key` has this value. The name of an entity type
    may have dots."""
    parts = key.split(".")
    if key.startswith("sharding.types.") and len(parts) > 4:
        parts = ["sharding", "types", ".".join(parts[2:-1]), parts[-1]]
    for part in reversed(parts):
        value = {part: value}
    return cast("dict[str, object]", value)


def _section(section: type[S], layers: Sequence[Layer], prefix: str) -> S:
    """Return one section with the values of the layers."""
    declarations = {declared.name: declared for declared in fields(cast("Any", section))}
    chosen: dict[str, Any] = {}
    below: dict[str, list[Layer]] = {}
    for origin, values in layers:
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{prefix[:-1]} ({origin}) is a section, not a value", hint=f"write {prefix}KEY"
            )
        for name, value in values.items():
            key = f"{prefix}{name}"
            if name not in declarations:
                raise unknown("setting", key, _likely(section, name, prefix), origin)
            if option_of(declarations[name]) is None:
                below.setdefault(name, []).append((origin, cast("Mapping[str, object]", value)))
                continue
            parsed = read(section, name, value, key, origin)
            chosen[name] = (
                {**chosen.get(name, {}), **parsed} if isinstance(parsed, dict) else parsed
            )
    for name, inner in below.items():
        nested = _nested(declarations[name].default_factory)
        chosen[name] = (
            _section(nested, inner, f"{prefix}{name}.")
            if nested
            else _types(inner, f"{prefix}{name}.")
        )
    return section(**chosen)


def _types(layers: Sequence[Layer], prefix: str) -> dict[str, dict[str, object]]:
    """Return the overrides per entity type."""
    by_type: dict[str, dict[str, object]] = {}
    for origin, values in layers:
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"{prefix[:-1]} ({origin}) is a section, not a value",
                hint=f"write {prefix}TYPE.KEY",
            )
        for name, overrides in values.items():
            check_id(f"entity type ({origin})", name)
            if not isinstance(overrides, Mapping):
                raise ConfigError(
                    f"{prefix}{name} ({origin}) is a section, not a value",
                    hint=f"write {prefix}{name}.KEY",
                )
            settings = by_type.setdefault(name, {})
            for key, value in overrides.items():
                settings[key] = read(ShardingSettings, key, value, f"{prefix}{name}.{key}", origin)
    return by_type


def _likely(section: type, name: str, prefix: str) -> str:
    """Return the closest known key: with the same last part, of the same section, or alike."""
    every = [key for key, _ in options()]
    if namesakes := [key for key in every if key.endswith(f".{name}")]:
        return namesakes[0]
    if sibling := closest(name, [declared.name for declared in fields(section)]):
        return f"{prefix}{sibling}"
    return closest(f"{prefix}{name}", every)


def _leaves(section: type, values: Mapping[str, object], prefix: str) -> Iterator[str]:
    """Yield the dotted keys that a valid layer sets."""
    nested = {f.name: _nested(f.default_factory) for f in fields(section) if option_of(f) is None}
    for name, value in values.items():
        inner = nested.get(name)
        if inner and isinstance(value, Mapping):
            yield from _leaves(inner, value, f"{prefix}{name}.")
        elif name in nested and isinstance(value, Mapping):
            yield from (
                f"{prefix}{name}.{kind}.{key}" for kind, keys in value.items() for key in keys
            )
        else:
            yield f"{prefix}{name}"


def _nested(factory: object) -> Any:
    """Return the section class of a field, None for the overrides per type."""
    return factory if factory is not MISSING and is_dataclass(factory) else None
