"""Findings as readers get them: confirmed by a second examination, with losses and failures."""

from __future__ import annotations

import copy
from typing import Any

from shardbus.admin.examination import BREAK_S, CONFIRM_S, Examination, lost_nodes
from shardbus.ids import NodeId
from tests.unit.admin.test_diagnosis import A, B, C, cut_off, healthy, member, of_type, update


class Cluster:
    """A cluster whose picture changes, and a clock."""

    def __init__(self) -> None:
        self.picture, self.losses, self.now = healthy(), dict[NodeId, Any](), 100.0

    async def findings(self, examination: Examination) -> dict[str, bool]:
        """The checks that are found, each with whether it is confirmed."""
        answer: Any = await examination.examine(self.picture, self.losses)
        return {group["check"]: group["confirmed"] for group in answer["findings"]}


async def test_a_difference_between_pages_is_confirmed_once_it_has_lasted() -> None:
    cluster = Cluster()
    examination = Examination(lambda: cluster.now)
    of_type(cluster.picture, 1)["shards"].pop("1")
    update(member(cluster.picture, 1), suspended="suspended, because")
    assert await cluster.findings(examination) == {"suspended": True, "not-hosted": False}
    cluster.now += CONFIRM_S - 0.1
    assert await cluster.findings(examination) == {"suspended": True, "not-hosted": False}
    cluster.now += 0.1
    assert await cluster.findings(examination) == {"suspended": True, "not-hosted": True}
    broken, cluster.picture = cluster.picture, healthy()
    assert await cluster.findings(examination) == {}
    cluster.picture = broken
    assert await cluster.findings(examination) == {"suspended": True, "not-hosted": False}, "anew"
    cluster.now += BREAK_S + 1
    assert await cluster.findings(examination) == {"suspended": True, "not-hosted": False}, (
        "nothing is known of the time in between"
    )


async def test_the_gravest_finding_stands_first() -> None:
    cluster = Cluster()
    examination = Examination(lambda: cluster.now)
    update(member(cluster.picture, 1), build="0.2.0")
    cut_off(cluster.picture)
    answer: Any = await examination.examine(cluster.picture, cluster.losses)
    assert [group["check"] for group in answer["findings"]] == ["unreachable", "versions"]
    counts = {name: answer[name] for name in ("healthy", "members", "types", "shards")}
    assert counts == {"healthy": False, "members": 3, "types": 1, "shards": 4}


def test_what_members_know_of_a_lost_node_is_put_together() -> None:
    a, b = NodeId.parse(A), NodeId.parse(B)
    lost = lost_nodes(
        {
            a: [[C, 7.0, "", {"page": [4, 3]}]],
            b: [["10.0.0.9:7355#09", 60.0, "", {}], [C, 7.5, "keep-majority: 2 of 3", {}]],
        }
    )
    assert [row["node"] for row in lost] == [C, "10.0.0.9:7355#09"], "the last one first"
    at = lost[0].pop("at")
    assert lost[0] == {
        "node": C,
        "by": B,
        "why": "keep-majority: 2 of 3",
        "shards": {"page": {"freed": 4, "homed": 3}},
    }
    assert isinstance(at, str)
    assert (lost[1]["by"], lost[1]["shards"]) == (None, {})


async def test_failures_have_their_last_exceptions_and_the_last_to_fail_stands_first() -> None:
    cluster = Cluster()
    examination = Examination(lambda: cluster.now)
    rows = {"pay": (30.0, "o-1"), "refund": (3.0, "o-2")}
    failing = [
        {"method": method, "count": 7, "last": [[age, entity, "ValueError", "no", "stack"]]}
        for method, (age, entity) in rows.items()
    ]
    update(of_type(cluster.picture, 1), failing=failing)
    other = [{"method": "pay", "count": 2, "last": [[4.0, "o-3", "KeyError", "", ""]]}]
    update(of_type(cluster.picture, 2), failing=copy.deepcopy(other))
    answer: Any = await examination.examine(cluster.picture, cluster.losses)
    assert [(row["method"], row["node"], row["count"]) for row in answer["failures"]] == [
        ("refund", B, 7),
        ("pay", C, 2),
        ("pay", B, 7),
    ]
    [last] = answer["failures"][0]["last"]
    assert (last["entity"], last["error"], last["stack"]) == ("o-2", "ValueError", "stack")
    by_method = {group["subjects"][0]: group["what"] for group in answer["findings"]}
    assert by_method["pay"] == f"has 9 failures, the last one KeyError (of 'o-3' on {C})"
    assert by_method["refund"] == f"has 7 failures, the last one ValueError: no (of 'o-2' on {B})"
