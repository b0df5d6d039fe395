"""Pages about replicated values: which there are, one of them, and changes by operators.

Source: docs/how-to/replicated-values.md; S3.84-S3.89.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from shardbus.admin.administration import Administration
from shardbus.admin.questions import question
from shardbus.errors import ConfigError, ShardBusError, StoreUnavailable, ValueRefused
from shardbus.http.page import PAGE_DEFAULT, Body, Json, Operator, PageSize, Text, page
from shardbus.transport.permissions import VALUES, VALUES_TYPE
from shardbus.wire.plain_json import content_to_json, from_json, to_json

if TYPE_CHECKING:
    from shardbus.replication.kinds import Versioned
    from shardbus.store.replicated_data import ReplicatedData

ValueKey = Annotated[str, Text("key", slashes=True)]
FOR_OPERATORS = "replicated values are for operators"


@page("GET", "/v1/values", operators_only=FOR_OPERATORS)
async def values(
    admin: Administration, operator: Operator, prefix: str = "", limit: PageSize = PAGE_DEFAULT
) -> Json:
    """The keys of replicated values, sorted, those that begin with `prefix`. Needs the operator's
    token, and the store inside the cluster.

    `values` (each with `key`), `more`.
    """
    keys = await _data(admin).keys(prefix)
    return {"values": [{"key": key} for key in keys[:limit]], "more": len(keys) > limit}


@page("GET", "/v1/values/{key}", operators_only=FOR_OPERATORS)
async def value(admin: Administration, key: ValueKey, operator: Operator, r: str = "") -> Json:
    """One replicated value, as `r` replicas make it together. Needs the operator's token.

    `key`, `replicas` (the addresses of those that hold it), `kind` (null if there is no value),
    `hash` (of the version), `version` (each with `disk` and `counter`), `value`, and `conflicts`
    (values that were put at the same time). Values that JSON lacks are as in
    [an export](../how-to/keep-state.md#move-states-to-another-store); a set is a list.
    """
    data = _data(admin)
    return _shown(key, data, await data.get(key, r=r or None))


@page("POST", "/v1/values/{key}")
async def put_value(
    admin: Administration, key: ValueKey, value: Body, operator: Operator, w: str = ""
) -> Json:
    """The value in the body, as JSON, is put in place of the one that is there, a register; it is
    answered once `w` replicas have it.

    As `GET`. A key that has a value of another kind, or a value that is too large, is 409.
    """
    data = _data(admin)
    try:
        plain = from_json(value)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the value: {error}") from None
    return _shown(key, data, await data.put(key, plain, w=w or None))


@page("DELETE", "/v1/values/{key}")
async def delete_value(
    admin: Administration, key: ValueKey, operator: Operator, w: str = ""
) -> Json:
    """The value is deleted, whatever its kind; it is answered once `w` replicas have noted it.

    `key`, `deleted` (false if there was none).
    """
    return {"key": key, "deleted": await _data(admin).delete(key, w=w or None)}


@question(VALUES)
async def answer_values(
    admin: Administration, kind: str, step: str, name: str, level: str | int, content: Any
) -> Any:
    """Do one step of replicated values for a client (`ReplicatedData.answer_step`). Errors are
    returned as refusals."""
    try:
        if kind != VALUES_TYPE:
            raise ConfigError(f"{kind!r:.60} are no values")
        return {"done": await _data(admin).answer_step(step, name, level, content)}
    except ValueRefused as error:
        return {"refused": [error.key, error.reason, error.detail, error.limit]}
    except StoreUnavailable as error:
        return {"unavailable": [error.message, error.hint, error.definite]}
    except ShardBusError as error:
        return {"invalid": [error.message, error.hint]}


def _data(admin: Administration) -> ReplicatedData:
    from shardbus.store.replicated_data import ReplicatedData  # most nodes have another store

    return ReplicatedData(admin.node.store, admin.node.settings.data)


def _shown(key: str, data: ReplicatedData, shown: Versioned | None) -> Json:
    row: Json = {"key": key, "replicas": data.replicas_of(key)}
    if shown is None:
        return row | {"kind": None, "hash": None, "version": [], "value": None, "conflicts": []}
    version = [{"disk": f"{disk:016x}", "counter": counter} for disk, counter in shown.version]
    conflicts = [to_json(each) for each in shown.conflicts]
    return row | {
        "kind": shown.kind,
        "hash": f"{shown.hash:016x}",
        "version": version,
        "value": content_to_json(shown.data),
        "conflicts": conflicts,
    }
