"""Three minutes of chaos, and that its judge sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import Chaos, SteadyProducer, Verdict
from tests.process.app import RECORD
from tests.process.test_ledger import ASK, TELL, Load


@pytest.mark.long
async def test_three_minutes_of_faults_leave_the_ledger_exact(tmp_path: Path) -> None:
    verdict = await Chaos(tmp_path, 1, 180.0).run()
    assert verdict.wrong == [], str(verdict)


def judged(folder: Path, rows: list[tuple[int, int, int, int, int]], outcome: str = "") -> Verdict:
    """The verdict on a ledger: page, producer, number, activation, instant."""
    (folder / "ledger-1").write_bytes(b"".join(RECORD.pack(*row) for row in rows))
    load = Load()
    load.producers = [SteadyProducer(None, TELL), SteadyProducer(None, ASK)]  # type: ignore[arg-type]
    if outcome:
        load.producers[1].outcomes[0, 1] = outcome
    chaos = Chaos(folder, 1, 0.0)
    chaos._judge(load)
    return chaos._verdict


@pytest.mark.parametrize(
    ("rows", "outcome", "wrong"),
    [
        ([(0, ASK, 1, 7, 1), (0, TELL, 1, 7, 2)], "ok", ""),
        ([(0, ASK, 1, 7, 1)], "unsure", ""),
        ([], "unsure", ""),
        ([], "ok", "was ok, handled 0 times"),
        ([(0, ASK, 1, 7, 1)], "refused", "was refused, handled 1 times"),
        ([(0, ASK, 1, 7, 1), (0, ASK, 1, 7, 2)], "unsure", "repeated"),
        ([(0, TELL, 2, 7, 1), (0, TELL, 1, 7, 2)], "", "reordered"),
        ([(0, TELL, 1, 7, 1), (0, TELL, 2, 8, 2), (0, TELL, 3, 7, 3)], "", "overlaps"),
    ],
)
def test_the_judge_sees_what_is_wrong(
    tmp_path: Path, rows: list[tuple[int, int, int, int, int]], outcome: str, wrong: str
) -> None:
    verdict = judged(tmp_path, rows, outcome)
    if wrong:
        assert any(wrong in one for one in verdict.wrong), verdict
    else:
        assert verdict.wrong == []
    assert "seed 1: " in str(verdict)
