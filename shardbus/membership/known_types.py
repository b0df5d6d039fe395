"""The entity types that a member's application has, as the member announces them.

During a rollout the members of one cluster have different types. A type is coordinated by the
oldest member that has it, and hosted only by members that have it. So each member announces its
types, in its `features`, which never change and reach every node with the member itself. Two nodes
that have the member agree on its types.

    types:0vQr9kTzXw4B...    the codes of types, CODE_CHARACTERS each; as many features as needed

A code is a hash of a type's name. It is short because every copy of the gossip state repeats it for
every member. Two names may have the same code. Then a member seems to have a type that it does not
have; its answer to the first registration corrects that (`singleton.messages.TypeMissing`).

A build that does not announce types may have any.

Source: docs/upgrading.md; S0.18, B.65.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

ANNOUNCES = "types:"
CODE_BYTES, CODE_CHARACTERS = 3, 4
CODES_PER_FEATURE = 60
"""Of the 256 characters that a feature may have, 246 are used."""
TYPES_MAX = 2000
"""Entity types of one application. The gossip state carries an epoch and a code for each, and has
room for the epochs of 4,096 names, former types included."""


def announced(entity_types: Iterable[str]) -> tuple[str, ...]:
    """Return the features by which a member announces its types; at least one."""
    codes = sorted(map(_code, entity_types))
    parts = [codes[i : i + CODES_PER_FEATURE] for i in range(0, len(codes), CODES_PER_FEATURE)]
    return tuple(ANNOUNCES + "".join(part) for part in parts or [[]])


def may_have(features: tuple[str, ...], entity_type: str) -> bool:
    """True unless a member with these features has announced its types, and this is none of
    them."""
    codes = _codes(features)
    return codes is None or _code(entity_type) in codes


def has_announced(features: tuple[str, ...], entity_type: str) -> bool:
    """True if a member with these features has announced the type, or one with the same code."""
    return _code(entity_type) in (_codes(features) or ())


@lru_cache(maxsize=2 * TYPES_MAX)
def _code(entity_type: str) -> str:
    digest = blake2b(entity_type.encode(errors="surrogatepass"), digest_size=CODE_BYTES).digest()
    return urlsafe_b64encode(digest).decode()


@lru_cache(maxsize=256)
def _codes(features: tuple[str, ...]) -> frozenset[str] | None:
    """Return the codes of a member's types, None if it does not announce them."""
    rows = [row.removeprefix(ANNOUNCES) for row in features if row.startswith(ANNOUNCES)]
    if not rows:
        return None
    return frozenset(
        row[i : i + CODE_CHARACTERS] for row in rows for i in range(0, len(row), CODE_CHARACTERS)
    )
