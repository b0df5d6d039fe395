"""Which nodes were lost, when, and by whose decision."""

from __future__ import annotations

from shardbus.ids import NodeId
from shardbus.node.lost_nodes import KEPT, LostNodes

A, B = NodeId("a", 7355, 1), NodeId("b", 7355, 2)


def test_a_reason_is_kept_whether_it_comes_before_or_after_the_end() -> None:
    lost = LostNodes()
    lost.decided((A,), "keep-majority: 2 of 3")
    assert list(lost) == [], "a decision alone loses no node"
    lost.gone(A, 5.0)
    lost.gone(A, 6.0)
    lost.gone(B, 7.0)
    assert [row[1:] for row in lost] == [(5.0, "keep-majority: 2 of 3"), (7.0, "")]
    lost.decided((B,), "an operator")
    assert [row.why for row in lost][1] == "an operator"


def test_the_last_ones_are_kept() -> None:
    lost = LostNodes()
    for n in range(KEPT + 5):
        node = NodeId("a", 7355, n)
        lost.decided((node,), "why")
        lost.gone(node, float(n))
    assert [row.at for row in lost] == [float(n) for n in range(5, KEPT + 5)]
    assert {row.why for row in lost} == {"why"}
