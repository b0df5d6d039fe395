"""The replicas that a command about disks works with: those of the settings, else of a node."""

from __future__ import annotations

from typing import Any

import pytest

from shardbus_cli import store_settings as module
from shardbus_cli.exit_codes import CommandFailure

NAMED, THERE = "cluster://10.0.0.1:7357", "cluster://10.0.0.7:7357,10.0.0.8:7357,10.0.0.9:7357"
SEEDS = ["node.seeds=10.0.0.1:7355"]


@pytest.mark.parametrize(
    ("store", "assignments", "there", "url"),
    [
        (None, [], THERE, THERE),
        ("cluster://", [], THERE, THERE),
        (NAMED, [], THERE, NAMED),
        ("cluster://", SEEDS, THERE, "cluster://"),
        ("sqlite:///x.db", [], THERE, "sqlite:///x.db"),
        (None, [], None, ""),
    ],
)
def test_a_node_names_the_replicas_if_the_settings_do_not(
    store: str | None,
    assignments: list[str],
    there: str | None,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`there`: the store of the node; None if it does not answer."""

    class Node:
        def __init__(self, at: str) -> None:
            assert at == "http://n:8558"

        def read(self, *path: str) -> dict[str, Any]:
            assert path == ("v1", "store")
            if there is None:
                raise CommandFailure("no node answers")
            return {"url": there}

    monkeypatch.setattr(module, "NodeHttp", Node)
    settings = module.store_settings(None, store, assignments, "http://n:8558")
    assert settings.store.url == url
    there = "sqlite:///shop.db"
    if (store, assignments) == (None, []):
        with pytest.raises(CommandFailure, match=r"is sqlite:///shop\.db, which has no replicas"):
            module.store_settings(None, store, assignments, "http://n:8558")
