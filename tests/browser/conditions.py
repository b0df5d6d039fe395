"""Clusters in the conditions that an operator meets: before anything, at work, and in trouble."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from shardbus.config.settings import HttpSettings
from tests.browser.synthetic import Fleet

OPERATOR = "the operator of this test"
TYPES = ("cart", "order", "page")
STEPS = 350


def fresh() -> Fleet:
    """A cluster whose first message has not come yet."""
    fleet = Fleet(nodes=1, shards=0, types=("cart",))
    fleet.drops, fleet.letters, fleet.ids = [], [], []
    fleet.grows_by = 0
    fleet.handling = [fleet.handler("add", "item: str, count: int = 1")]
    return fleet


def empty() -> Fleet:
    """A node whose application has no type."""
    fleet = fresh()
    fleet.types_, fleet.handling = (), []
    return fleet


def loaded() -> Fleet:
    """A cluster at work, with an hour behind it."""
    fleet, dice = Fleet(nodes=5, shards=60, types=TYPES), Random(7)
    fleet.drops, fleet.letters = [], []
    fleet.rates = {
        name: {
            str(n): round(40 / (1 + n % 17) * dice.uniform(0.7, 1.2), 1)
            for n in range(0, 60, 1 + i)
        }
        for i, name in enumerate(TYPES)
    }
    fleet.hour = [
        {
            "ago": 10.0 * (STEPS - n),
            "nodes": 5,
            "received": 900 + 400 * ((n // 40) % 3) + dice.uniform(-60, 60),
            "handled": dice.choice((0.004, 0.005, 0.006, 0.02)),
            "waited": dice.choice((0.001, 0.002, 0.01)),
            "store_calls": 300,
            "store_seconds": dice.uniform(0.3, 0.5),
            "busy": 0.3 + 0.1 * ((n // 40) % 3),
            "lag": 0.002,
            "entities": 500 + n,
            "waiting": dice.choice((0, 0, 1, 4)),
        }
        for n in range(STEPS)
    ]
    fleet.handling = [
        fleet.handler("add", "item: str, count: int = 1", "cart", 48_210, p50=0.0006, p99=0.012),
        fleet.handler("total", "", "cart", 9_120, p50=0.0001, p99=0.0009),
        fleet.handler("pay", "amount: int, card: Card", "order", 3_004, p50=0.021, p99=0.18),
        fleet.handler("hit", "by: int", "page", 512_000, p50=0.0001, p99=0.0021),
        fleet.handler("reset", "", "page"),
    ]
    fleet.move("7", 3)
    fleet.move("12", 1, "drain")
    return fleet


def lost() -> Fleet:
    """A cluster that cannot reach one node and has lost another."""
    fleet = loaded()
    fleet.cut(3)
    fleet.lost = [
        {
            "node": "10.0.0.9:7355#0000000000000009",
            "at": "2026-01-02T03:04:05+00:00",
            "by": fleet.names[0],
            "why": "keep-majority: 5 of 6 members are here",
            "shards": {"cart": {"freed": 10, "homed": 8}, "page": {"freed": 1, "homed": 1}},
        }
    ]
    fleet.rows["9"][1] = "h"
    fleet.rows["14"][1] = "s"
    return fleet


def failing() -> Fleet:
    """A cluster whose handlers fail and whose messages are dropped."""
    fleet = loaded()
    texts = ("no money for 3 of o-1", "the card of o-7 has expired", "no money for 12 of o-44")
    last = [fleet.exception(text) for text in texts]
    for row in fleet.handling:
        if row["handler"] in ("pay", "hit"):
            row |= {"failures": 128, "last": last if row["handler"] == "pay" else last[:1]}
    fleet.handling.append(
        fleet.handler("on_start", None, "order", failures=3, last=[fleet.exception("no row")])
    )
    fleet.failures = [
        {"type": "order", "method": "pay", "node": fleet.names[0], "count": 128, "last": []}
    ]
    fleet.failed = {"order": 128, "page": 1}
    fleet.extra_findings = [
        {
            "check": "failing-handler",
            "level": "fault",
            "of": "order",
            "subjects": ["pay"],
            "what": "has 128 failures, the last one ValueError: no money for 3 of o-1",
            "advice": "see `shardbus explain order o-1`, or the log of 10.0.0.1:7355",
            "confirmed": True,
        }
    ]
    fleet.drops = [["order", "failed", 128], ["cart", "mailbox_full", 31_000], ["", "early", 1]]
    fleet.letters = [fleet.letter("order", "failed", f"o-{n}") for n in range(4)]
    report = {"at": "2026-01-01T00:00:00Z", "node": fleet.names[1], "type": "order"}
    text = "pay of order 'o-7' has waited for 12.0 s: at app.py:41 in pay, bank.py:9 in charge"
    fleet.reports = [{**report, "how": "waited", "text": text}]
    return fleet


CONDITIONS: dict[str, tuple[Callable[[], Fleet], HttpSettings]] = {
    "fresh": (fresh, HttpSettings(write=True, token=OPERATOR)),
    "loaded": (loaded, HttpSettings(write=True, token=OPERATOR)),
    "lost": (lost, HttpSettings(write=True, token=OPERATOR)),
    "failing": (failing, HttpSettings(write=True, token=OPERATOR)),
    "no-token": (loaded, HttpSettings(reader_token=OPERATOR)),
    "empty": (empty, HttpSettings()),
}
"""Functions that make a cluster, and the settings of its HTTP, by name."""
