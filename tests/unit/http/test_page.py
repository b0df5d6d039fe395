"""The declaration of a page: how annotations convert parameters, and which paths are for it."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from shardbus.errors import ConfigError
from shardbus.http.page import (
    EntityId,
    EntityType,
    Json,
    NodeName,
    Number,
    PageSize,
    ShardId,
    Source,
    page,
)


@page("POST", "/v1/any/{type}/{id}")
async def declared(
    node: str,
    type: EntityType,
    id: EntityId,
    needed: Annotated[int, Number(0, 9)],
    size: PageSize = 100,
    seconds: Annotated[float, Number(1, 60)] = 5.0,
    flag: bool = False,
    pause: bool | None = None,
    kind: EntityType = "",
    shard: tuple[ShardId, ...] = (),
) -> Json:
    """Return everything.

    `all`: its fields.
    """
    return {"node": node, "type": type, "size": size}


PARAMETERS = {parameter.name: parameter for parameter in declared.parameters}


@pytest.mark.parametrize(
    ("name", "texts", "value"),
    [
        ("needed", ["7"], 7),
        ("size", [], 100),
        ("size", ["5", "7"], 7),
        ("size", ["2000"], 1000),
        ("seconds", ["9"], 9.0),
        ("flag", ["true"], True),
        ("pause", [], None),
        ("pause", ["false"], False),
        ("kind", [""], ""),
        ("kind", ["cart"], "cart"),
        ("shard", [], ()),
        ("shard", ["1", "a/b"], ("1", "a/b")),
    ],
)
def test_an_annotation_converts_the_texts(name: str, texts: list[str], value: object) -> None:
    converted = PARAMETERS[name].value(texts)
    assert (converted, type(converted)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "texts", "why"),
    [
        ("needed", [], "needed '' is not a number in range"),
        ("needed", ["10"], "needed '10' is not a number in range"),
        ("size", ["0"], "size '0' is not a number in range"),
        ("size", ["9999999999"], "is not a number in range"),
        ("seconds", ["1.5"], "is not a number in range"),
        ("flag", [""], "flag '' is not true or false"),
        ("kind", ["\0"], "entity type"),
        ("shard", ["1", ""], "shard"),
    ],
)
def test_a_text_that_is_no_such_value_is_refused(name: str, texts: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        PARAMETERS[name].value(texts)


@pytest.mark.parametrize(
    ("path", "parts", "texts"),
    [
        ("/v1/any", ["any"], {}),
        ("/v1/any/{type}", ["a"], {"type": "a"}),
        ("/v1/any/{type}", ["a", "b"], None),
        ("/v1/any/{type}", [], None),
        ("/v1/any/{type}/{id}", ["a", "b", "", "c"], {"type": "a", "id": "b//c"}),
        ("/v1/any/{type}/{id}", ["a"], None),
        ("/v1/any/{node}/leave", ["n", "1", "leave"], {"node": "n/1"}),
        ("/v1/any/{node}/leave", ["n", "down"], None),
        ("/v1/any/{node}/leave", ["", "leave"], None),
        ("/v1/any/{node}/leave", ["leave"], None),
    ],
)
def test_only_the_last_parameter_of_a_path_has_slashes(path: str, parts: Any, texts: Any) -> None:
    async def function(
        admin: str, type: EntityType = "", id: EntityId = "", node: NodeName = ""
    ) -> Json:
        return {}

    function.__annotations__ |= {"type": EntityType, "id": EntityId, "node": NodeName}
    assert page("GET", path)(function).texts(parts) == texts


async def test_a_page_is_its_function_with_a_name_a_text_and_parameters() -> None:
    assert (declared.name, declared.text.partition("\n")[0]) == ("declared", "Return everything.")
    in_path = [
        parameter.name for parameter in declared.parameters if parameter.source is Source.PATH
    ]
    assert in_path == ["type", "id"]
    assert await declared("n", "a", "b", 1) == {"node": "n", "type": "a", "size": 100}
    assert await declared.bound("m")("a", "b", 1, size=3) == {"node": "m", "type": "a", "size": 3}


def test_a_result_that_cannot_be_sent_is_no_page() -> None:
    def function(admin: str) -> int:
        return 1

    with pytest.raises(AssertionError, match="returns"):
        page("GET", "/v1/any")(function)
