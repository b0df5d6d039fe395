"""Real nodes drop messages for several reasons; the command lists each of them, and sends them
again, each once."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from typing import Any

import pytest

from shardbus import AsyncClient, Rejection, RequestError
from shardbus_cli.main import run
from tests.process.nodes import NodeProcess, Processes
from tests.process.test_ledger import Ledger
from tests.waiting import until

pytestmark = pytest.mark.long
TOKEN = "an operator's own token"
SETTINGS = (
    "http.write=true",
    f"http.token={TOKEN}",
    "sharding.types.page.dead_letter_payloads=1KiB",
)
LATE, LOST = 7, 8
"""Producers: of messages that fail first, and of those to a node that is killed."""


class Shell:
    """Runs `shardbus dead-letters` against nodes, with the operator's token."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, node: NodeProcess, *words: str, wanted: int = 0) -> Any:
        """Return the JSON output, or the error that goes with another exit code."""
        url = f"http://127.0.0.1:{node.http_port}"
        code = run(["dead-letters", *words, "--json", "--node", url])
        written = self._capsys.readouterr()
        assert code == wanted, written.err
        return json.loads(written.out) if wanted == 0 else written.err

    def letters(self, node: NodeProcess, *words: str) -> Counter[tuple[str, str]]:
        """The letters of all nodes, by reason and method."""
        page = self(node, "list", *words)
        assert page["silent"] == []
        return Counter((letter["reason"], letter["method"]) for letter in page["letters"])


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", TOKEN)
    return Shell(capsys)


async def homes(client: AsyncClient, count: int) -> dict[str, list[int]]:
    """Pages by the name of their node."""
    by_home: dict[str, list[int]] = {}
    for number in range(count):
        home = await client.call("page", f"page-{number}", "where")
        by_home.setdefault(home, []).append(number)
    return by_home


async def test_B166_what_nodes_drop_is_listed_and_sent_again_once(
    lab: Processes, shell: Shell
) -> None:
    first, second = await lab.cluster(2, settings=SETTINGS)
    async with lab.client() as client:
        pages = await homes(client, 40)
        assert len(pages) == 2
        for number in range(10):
            page = f"page-{number}"
            await client.cast("page", page, "hit", "no number", 1)
            await client.cast("page", page, "hit_late", LATE, number + 1, "gate")
        for number in range(4):
            await client.cast("page", f"page-{number}", "gone", number)
            await client.cast("account", f"account-{number}", "spend", 5)
        with pytest.raises(RequestError):
            await client.call("page", "page-0", "hit", "no number", 1)
        with pytest.raises(Rejection):
            await client.call("account", "account-0", "spend", 5)
        expected = {
            ("schema", "hit"): 11,
            ("failed", "hit_late"): 10,
            ("unhandled", "gone"): 4,
            ("rejected", "spend"): 4,
        }

        def all_there() -> bool:
            return shell.letters(first) == expected

        await until(all_there, "the letters")
        assert shell.letters(second, "--type", "account") == {("rejected", "spend"): 4}
        few = shell.letters(second, "--reason", "failed", "--since", "1h", "--limit", "3")
        assert few == {("failed", "hit_late"): 3}

        refused = shell(first, "replay", "--type", "account", "--yes", wanted=6)
        assert "its body was not kept" in refused
        (lab.folder / "gate").touch()
        dry = shell(first, "replay", "--reason", "failed")
        assert (len(dry["letters"]), dry["sent"]) == (10, 0)
        chosen = dry["letters"][3]["id"]
        done = shell(second, "replay", chosen, "--yes")
        assert (done["sent"], done["failed"]) == (1, [])
        assert "not kept any more" in shell(second, "replay", chosen, wanted=6)
        done = shell(second, "replay", "--reason", "failed", "--yes")
        assert (done["sent"], done["failed"], done["more"]) == (9, [], False)
        await until(lambda: Ledger(lab.folder).total(LATE) == 10, "every message")
        assert shell.letters(first) == {k: n for k, n in expected.items() if k[0] != "failed"}

        # A node stands still and is killed: the arrival of messages under way to it is unknown.
        home = next(name for name in pages if name.startswith(first.address))
        [away] = [pages[name] for name in pages if name != home]
        second.signal(signal.SIGSTOP)
        for seq in range(1, 21):
            await client.cast("page", f"page-{pages[home][0]}", "pass_on", away[0], LOST, seq)
        await client.call("page", f"page-{pages[home][0]}", "where")  # behind all of them
        await asyncio.to_thread(second.kill)
        await lab.agree(first)  # a member that does not answer makes the command fail

        def lost() -> bool:
            listed = shell.letters(first, "--reason", "unconfirmed")
            return listed == {("unconfirmed", "hit"): 20}

        await until(lost, "the messages to the dead node")
        kept = shell(first, "replay", "--type", "page", "--since", "1h")
        assert {letter["reason"] for letter in kept["letters"]} <= {"schema", "unhandled"}
        done = shell(first, "replay", "--reason", "unconfirmed", "--yes")
        assert (done["sent"], done["failed"]) == (20, [])
        await until(lambda: Ledger(lab.folder).total(LOST) == 20, "each of them")
    ledger = Ledger(lab.folder)
    assert ledger.repeated == []
    assert sorted(ledger.handled[away[0], LOST]) == list(range(1, 21))
    assert sum(len(ledger.handled[number, LATE]) for number in range(10)) == 10
    await first.says("letters replayed")
    await first.says("by operator at 127.0.0.1")
