"""The declaration of a setting, and the parsing of its value.

A setting is a dataclass field that one of the functions below creates (`seconds`, `count`, `text`,
...). The field's metadata is an `Option`: kind, unit, range and meaning. The loader, `config show`
and the reference page all read that one declaration.

    kind      accepts                                         becomes
    seconds   2, 0.5, "2s", "100ms", "1m", "24h", "1d"        float
    size      1048576, "64MiB", "1 GB", "512 B"               int, bytes
    count     10, "10"                                        int
    number    0.8, "0.8"                                      float
    flag      true, "true", "on", "yes", "1" and opposites    bool
    text      "..."                                           str
    names     ["a", "b"], "a,b"                               tuple of str
    counts    {a = 1}, "a=1,b=2"                              dict of str to int

If zero turns a setting off, "off" may be written instead. `parse` raises a `ConfigError` that names
the fault of the value; `read` adds the key and the origin in front.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from numbers import Real
from typing import Any

from shardbus.errors import ConfigError

TEN_YEARS = 315_360_000.0


class ValueType(Enum):
    """The kind of value of a setting; it decides how the value is parsed."""

    SECONDS = "seconds"
    SIZE = "size"
    COUNT = "count"
    NUMBER = "number"
    FLAG = "flag"
    TEXT = "text"
    NAMES = "names"
    COUNTS = "counts"


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of one setting. `low` and `high` are inclusive; `off` also allows zero;
    `check` raises ConfigError for an invalid word of a list; `named` also allows, besides the
    choices, a function of the user as module:name."""

    kind: ValueType
    meaning: str
    unit: str = ""
    low: float = 0
    high: float = 0
    off: bool = False
    choices: tuple[str, ...] = ()
    named: bool = False
    secret: bool = False
    check: Callable[[str], object] | None = None


def seconds(default: float, meaning: str, *, low: float = 0.001, off: bool = False) -> Any:
    """Declare a length of time, in seconds."""
    return _declare(default, Option(ValueType.SECONDS, meaning, "s", low, TEN_YEARS, off))


def size(default: int, meaning: str, *, low: int = 1, high: int = 2**50, off: bool = False) -> Any:
    """Declare an amount of memory, in bytes."""
    return _declare(default, Option(ValueType.SIZE, meaning, "bytes", low, high, off))


def count(default: int, meaning: str, *, low: int = 1, high: int = 2**31, off: bool = False) -> Any:
    """Declare a whole number."""
    return _declare(default, Option(ValueType.COUNT, meaning, "", low, high, off))


def number(default: float, meaning: str, *, low: float = 0.0, high: float = 1.0) -> Any:
    """Declare a number without a unit."""
    return _declare(default, Option(ValueType.NUMBER, meaning, "", low, high))


def flag(default: bool, meaning: str) -> Any:
    """Declare a setting that is true or false."""
    return _declare(default, Option(ValueType.FLAG, meaning))


def text(
    default: str,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    named: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a word: one of `choices` if there are any, or, if `named`, a function of the user as
    module:name. A secret appears in no `repr` and no error."""
    option = Option(ValueType.TEXT, meaning, choices=choices, named=named, secret=secret)
    return _declare(default, option)


def names(meaning: str, check: Callable[[str], object] | None = None) -> Any:
    """Declare a list of words, empty by default."""
    return _declare((), Option(ValueType.NAMES, meaning, check=check))


def counts(meaning: str) -> Any:
    """Declare whole numbers by name, empty by default."""
    return field(
        default_factory=dict,
        metadata={"option": Option(ValueType.COUNTS, meaning, low=1, high=2**31)},
    )


def option_of(declared: Field[Any]) -> Option | None:
    """Return the declaration of a setting, None for a nested section."""
    option = declared.metadata.get("option")
    return option if isinstance(option, Option) else None


def parse(option: Option, value: object) -> Any:
    """Return the value as the setting's type.

    Raises:
        ConfigError: the value has another type or is outside the range.
    """
    return _PARSERS[option.kind](option, value)


def checked_seconds(name: str, value: object, low: float = 0.0) -> float:
    """Return a number of seconds that an application gives a call, from `low` to ten years. `name`
    is the argument's, for the error.

    Raises:
        ConfigError: it is no number, as a text or a timedelta is none, or it is out of the range.
    """
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if low <= number <= TEN_YEARS:
        return number
    hint = "write `.total_seconds()`" if isinstance(value, timedelta) else ""
    raise ConfigError(
        f"{name} is {low:g} to {TEN_YEARS:.0f} seconds, as a number, not {value!r:.60}", hint=hint
    )


def read(section: type, name: str, value: object, key: str, origin: str) -> Any:
    """Return one value of one section as the setting's type. `key` and `origin` are for the error.

    Raises:
        ConfigError: the section has no such setting, or the value is invalid.
    """
    options = {f.name: option for f in fields(section) if (option := option_of(f))}
    option = options.get(name)
    if option is None:
        raise unknown("setting", key, closest(name, options), origin)
    try:
        return parse(option, value)
    except ConfigError as wrong:
        message = f"{key} = {shown(option, value)} ({origin}): {wrong.message}"
        raise ConfigError(message, hint=wrong.hint) from None


def unknown(what: str, key: str, nearest: str, origin: str) -> ConfigError:
    """Return the error for an unknown name, with the nearest known one as a hint."""
    hint = f"did you mean {nearest}?" if nearest else "`shardbus config show` lists every setting"
    return ConfigError(f"unknown {what} {key!r} ({origin})"[:300], hint=hint)


def closest(name: str, choices: Iterable[str]) -> str:
    """Return the choice closest to `name`, empty if none is close."""
    return next(iter(get_close_matches(name.lower(), list(choices), n=1, cutoff=0.6)), "")


def shown(option: Option, value: object) -> str:
    """Return the value for an error: short, on one line, and never a secret."""
    if option.secret:
        return "(secret)"
    quoted = repr(value)
    return quoted if len(quoted) <= 60 else quoted[:57] + "..."


def _declare(default: object, option: Option) -> Any:
    return field(default=default, repr=not option.secret, metadata={"option": option})


_MEASURE = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE
)
_SECONDS = {"us": 1e-6, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_FLAGS = {
    "true": True,
    "on": True,
    "yes": True,
    "1": True,
    "false": False,
    "off": False,
    "no": False,
    "0": False,
}


def _measure(value: object, units: Mapping[str, float]) -> float | None:
    """Return the finite number that `value` is or spells, times its unit; None if it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value if abs(value) < 2**63 else None
    if not isinstance(value, str) or not (match := _MEASURE.fullmatch(value[:64])):
        return None
    amount, unit = match.groups()
    factor = units.get(unit.lower()) if unit else 1
    if factor is None:
        return None
    measured = float(amount) * factor
    return measured if math.isfinite(measured) else None


def _in_range(
    option: Option, value: float, as_written: Callable[[float], str] = "{:g}".format
) -> float:
    if option.low <= value <= option.high or (option.off and value == 0):
        return value
    off = ", or 0 for off" if option.off else ""
    unit = f" {option.unit}" if option.unit else ""
    raise ConfigError(f"must be {as_written(option.low)} to {as_written(option.high)}{unit}{off}")


def _seconds(option: Option, value: object) -> float:
    if option.off and value in ("off", None, False):
        return 0.0
    measured = _measure(value, _SECONDS)
    if measured is None:
        raise ConfigError("not a duration", hint="write seconds, or 2s, 100ms, 1m, 24h")
    return float(_in_range(option, measured))


def _size(option: Option, value: object) -> int:
    if option.off and value in ("off", None, False):
        return 0
    measured = _measure(value, _BYTES)
    if measured is None or measured != int(measured):
        raise ConfigError("not a size", hint="write bytes, or 64MiB, 1GB")
    return int(_in_range(option, measured, "{:.0f}".format))


def _count(option: Option, value: object) -> int:
    if option.off and value in ("off", None):
        return 0
    whole = (
        int(value)
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value, re.ASCII)
        else value
    )
    if not isinstance(whole, int) or isinstance(whole, bool):
        raise ConfigError("not a whole number")
    return int(_in_range(option, whole, "{:.0f}".format))


def _number(option: Option, value: object) -> float:
    measured = _measure(value, {})
    if measured is None:
        raise ConfigError("not a number")
    return float(_in_range(option, measured))


def _flag(option: Option, value: object) -> bool:
    is_on = (
        value
        if isinstance(value, bool)
        else _FLAGS.get(value.lower())
        if isinstance(value, str)
        else None
    )
    if is_on is None:
        raise ConfigError("not true or false")
    return is_on


def _text(option: Option, value: object) -> str:
    line = value if isinstance(value, str) and (value.isprintable() or value == "") else None
    if line is not None and (not option.choices or line in option.choices):
        return line
    if not option.choices:
        raise ConfigError("not a text on one line")
    if line is not None and option.named and ":" in line:
        return line
    or_named = ", or a function of yours as module:name" if option.named else ""
    raise ConfigError(f"must be one of {', '.join(option.choices)}{or_named}")


_LIST = re.compile(r"""\s*\[\s*["'\]]""")


def _listed(text: str) -> object:
    """Return the words of a variable or a flag, in either form."""
    if not _LIST.match(text):  # "[::1]:7355" is a word
        return [part.strip() for part in text.split(",")]
    try:
        return tomllib.loads(f"words = {text}")["words"]
    except tomllib.TOMLDecodeError:
        return None


def _names(option: Option, value: object) -> tuple[str, ...]:
    listed = _listed(value) if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str) for name in listed):
        raise ConfigError("not a list of words", hint='write ["a", "b"] or a,b')
    words = tuple(dict.fromkeys(_text(option, name) for name in listed if name))
    if option.check is not None:
        for word in words:
            option.check(word)
    return words


def _counts(option: Option, value: object) -> dict[str, int]:
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        value = {name.strip(): amount for name, _, amount in pairs}
    if not isinstance(value, Mapping) or "" in value:
        raise ConfigError("not numbers by name", hint="write {name = 2} or name=2")
    return {_text(option, name): _count(option, amount) for name, amount in value.items()}


_PARSERS: dict[ValueType, Callable[[Option, object], Any]] = {
    ValueType.SECONDS: _seconds,
    ValueType.SIZE: _size,
    ValueType.COUNT: _count,
    ValueType.NUMBER: _number,
    ValueType.FLAG: _flag,
    ValueType.TEXT: _text,
    ValueType.NAMES: _names,
    ValueType.COUNTS: _counts,
}
