"""The life of the nodes of `shardbus dev`: start, reload, restart, end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardbus_cli.children.group import (
    FIRST_PAUSE_S,
    RAN_WELL_S,
    AllReady,
    ChildBack,
    ChildEffect,
    ChildEvent,
    ChildExited,
    ChildLeft,
    ChildLoaded,
    ChildReady,
    ChildServes,
    CommandChild,
    EndAll,
    Ending,
    Interrupt,
    KillChild,
    NotLoaded,
    RestartLater,
    SourceChanged,
    SpawnChild,
    StartAll,
    Word,
)
from shardbus_cli.dev.cluster import END_S, LONGEST_PAUSE_S, DevCluster, DevStage

SIGKILL = -9


class Lab:
    """A machine, its clock, and the processes that its effects would have started."""

    def __init__(self, nodes: int = 3, *, reload: bool = True) -> None:
        self.machine = DevCluster(nodes, reload=reload)
        self.now = 100.0
        self.live: dict[int, int] = {}
        self.words: dict[int, list[Word]] = {}
        self.killed: set[int] = set()
        self.ended: int | None = None
        self.seeds: dict[int, tuple[int, ...]] = {}

    def do(self, event: ChildEvent) -> list[ChildEffect]:
        return self._note(self.machine.handle(event, self.now))

    def wait(self, seconds: float) -> list[ChildEffect]:
        self.now += seconds
        return self._note(self.machine.tick(self.now))

    def exit(self, run: int, code: int = 0) -> list[ChildEffect]:
        del self.live[run]
        return self.do(ChildExited(run, code))

    def _note(self, effects: list[ChildEffect]) -> list[ChildEffect]:
        self.machine.check()
        for effect in effects:
            match effect:
                case SpawnChild(run, number, seeds):
                    self.live[run], self.words[run], self.seeds[run] = number, [], seeds
                case CommandChild(run, word):
                    self.words[run].append(word)
                case KillChild(run):
                    self.killed.add(run)
                case EndAll(code):
                    assert self.ended is None
                    assert not self.live, "a process is left"
                    self.ended = code
        return effects

    def generation(self) -> list[int]:
        """The youngest run of each node."""
        return sorted({number: run for run, number in sorted(self.live.items())}.values())

    def load(self) -> list[int]:
        runs = self.generation()
        for run in runs:
            self.do(ChildLoaded(run))
        return runs

    def serve(self, runs: list[int]) -> None:
        for run in runs:
            self.do(ChildServes(run, 3.0))
            self.do(ChildReady(run))


def running(nodes: int = 3, *, reload: bool = True) -> tuple[Lab, list[int]]:
    lab = Lab(nodes, reload=reload)
    lab.do(StartAll())
    runs = lab.load()
    lab.serve(runs)
    return lab, runs


def test_node_1_loads_first_and_founds_the_cluster() -> None:
    lab = Lab()
    lab.do(StartAll())
    assert lab.words == {1: [Word.LOAD], 2: [], 3: []}
    assert lab.seeds == {1: (), 2: (1, 2, 3), 3: (1, 2, 3)}
    assert lab.do(ChildLoaded(1)) == [
        CommandChild(2, Word.LOAD), CommandChild(3, Word.LOAD), CommandChild(1, Word.RUN),
    ]  # fmt: skip
    assert lab.do(ChildLoaded(2)) == [], "it waits for node 1 to serve"
    assert lab.do(ChildServes(1, 3.0)) == [CommandChild(2, Word.RUN)]
    assert lab.do(ChildLoaded(3)) == [CommandChild(3, Word.RUN)]
    assert [lab.do(ChildReady(run)) for run in (1, 2, 3)] == [[], [], [AllReady(1)]]


def test_a_change_starts_new_processes_and_the_nodes_end_once_one_has_loaded() -> None:
    lab, old = running()
    lab.do(SourceChanged())
    new = lab.generation()
    assert not set(new) & set(old)
    assert all(Word.END not in lab.words[run] for run in old)
    lab.do(ChildLoaded(new[0]))
    assert all(lab.words[run][-1] is Word.END for run in old)
    assert Word.RUN not in lab.words[new[0]]
    lab.do(ChildLoaded(new[1]))
    for run in old[:-1]:
        assert lab.exit(run) == []
    assert lab.exit(old[-1]) == [CommandChild(new[0], Word.RUN)], "the ports are free now"
    lab.do(ChildLoaded(new[2]))
    lab.do(ChildServes(new[0], 3.0))
    assert lab.words[new[2]] == [Word.LOAD, Word.RUN]
    for run in new[:-1]:
        assert lab.do(ChildReady(run)) == []
    assert lab.do(ChildReady(new[-1])) == [AllReady(2)]


def test_code_that_cannot_be_loaded_stops_nothing() -> None:
    lab, old = running()
    lab.do(SourceChanged())
    new = lab.generation()
    assert NotLoaded(kept=True) in lab.exit(new[0], 3)
    assert lab.killed == set(new[1:])
    for run in new[1:]:
        assert lab.exit(run, SIGKILL) == []
    assert set(lab.machine.stages.values()) == {DevStage.READY}
    assert all(Word.END not in lab.words[run] for run in old)
    lab.do(SourceChanged())
    assert len(lab.live) == 6


def test_code_that_only_another_node_cannot_load_waits_for_a_change() -> None:
    lab, old = running()
    lab.do(SourceChanged())
    new = lab.generation()
    lab.do(ChildLoaded(new[0]))
    assert NotLoaded(kept=False) in lab.exit(new[1], 3)
    for run in [*old, new[0], new[2]]:
        lab.exit(run, 0)
    assert (lab.live, lab.ended) == ({}, None)
    lab.do(SourceChanged())
    lab.serve(lab.load())
    assert set(lab.machine.stages.values()) == {DevStage.READY}


def test_a_second_change_discards_the_first() -> None:
    lab, old = running()
    lab.do(SourceChanged())
    first = lab.generation()
    lab.do(ChildLoaded(first[0]))
    lab.do(SourceChanged())
    second = lab.generation()
    assert lab.killed == set(first)
    for run in first:
        lab.exit(run, SIGKILL)
    lab.do(ChildLoaded(second[0]))
    for run in old:
        lab.exit(run)
    assert lab.words[second[0]] == [Word.LOAD, Word.RUN]


def test_an_application_that_cannot_be_loaded_ends_dev_with_its_exit_code() -> None:
    lab = Lab(reload=False)
    lab.do(StartAll())
    lab.exit(1, 3)
    assert lab.killed == {2, 3}
    lab.exit(2, SIGKILL)
    assert lab.ended is None
    lab.exit(3, SIGKILL)
    assert lab.ended == 3


def test_with_reload_it_waits_for_a_change_instead() -> None:
    lab = Lab()
    lab.do(StartAll())
    assert NotLoaded(kept=False) in lab.exit(1, 3)
    for run in (2, 3):
        lab.exit(run, SIGKILL)
    assert lab.ended is None
    lab.do(SourceChanged())
    assert len(lab.live) == 3
    assert lab.do(Interrupt()) == [Ending(), *map(KillChild, lab.generation())]


def test_a_node_that_fails_before_all_were_ready_ends_its_generation() -> None:
    lab = Lab(reload=False)
    lab.do(StartAll())
    lab.load()
    lab.do(ChildServes(1, 3.0))
    lab.exit(2, 2)
    assert lab.killed == {1, 3}
    for run in (1, 3):
        lab.exit(run, SIGKILL)
    assert lab.ended == 2


def test_a_node_that_is_killed_comes_back_after_a_pause_that_doubles() -> None:
    lab, runs = running()
    run, pause = runs[1], FIRST_PAUSE_S
    for _ in range(8):
        assert lab.exit(run, SIGKILL) == [RestartLater(2, SIGKILL, pause)]
        assert lab.machine.deadline() == lab.now + pause
        assert lab.wait(pause / 2) == []
        lab.wait(pause / 2)
        run = lab.generation()[-1]
        assert lab.seeds[run] == (1, 2, 3)
        assert lab.words[run] == [Word.LOAD]
        assert lab.do(ChildLoaded(run)) == [CommandChild(run, Word.RUN)]
        assert lab.do(ChildReady(run)) == [ChildBack(2)]
        pause = min(2 * pause, LONGEST_PAUSE_S)
    lab.wait(RAN_WELL_S)
    assert lab.exit(run, SIGKILL) == [RestartLater(2, SIGKILL, FIRST_PAUSE_S)]


def test_a_node_that_left_by_order_stays_away_until_the_next_reload() -> None:
    lab, runs = running()
    assert lab.exit(runs[2]) == [ChildLeft(3)]
    assert lab.machine.deadline() is None
    lab.do(SourceChanged())
    assert len(lab.generation()) == 3


def test_dev_ends_when_its_last_node_has_left() -> None:
    lab, runs = running(reload=False)
    for run in runs:
        lab.exit(run)
    assert lab.ended == 0


def test_ctrl_c_ends_the_nodes_and_a_second_one_kills_them() -> None:
    lab, runs = running()
    lab.exit(runs[2], SIGKILL)
    ends = [CommandChild(run, Word.END) for run in runs[:2]]
    assert lab.do(Interrupt()) == [Ending(), *ends]
    assert lab.do(SourceChanged()) == []
    lab.exit(runs[0])
    assert lab.do(Interrupt()) == [Ending(), KillChild(runs[1])]
    lab.exit(runs[1], SIGKILL)
    assert lab.ended == 1


def test_ctrl_c_is_exit_code_0_and_nodes_that_do_not_end_are_killed() -> None:
    lab, runs = running()
    lab.do(Interrupt())
    for run in runs[:2]:
        lab.exit(run)
    assert lab.machine.deadline() == lab.now + END_S
    assert lab.wait(END_S) == [KillChild(runs[2])]
    lab.exit(runs[2], SIGKILL)
    assert lab.ended == 0


def test_ctrl_c_without_a_process_ends_at_once() -> None:
    lab = Lab(1)
    lab.do(StartAll())
    lab.exit(1, 3)
    assert EndAll(0) in lab.do(Interrupt())


KINDS = ("loaded", "serves", "ready", "exit", "change", "tick", "stop")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(),
    ),
    max_size=60,
)


@given(EVENTS, st.booleans())
def test_whatever_happens_each_run_is_in_one_place_and_no_process_is_left(
    events: list[tuple[str, int]], reload: bool
) -> None:
    lab = Lab(reload=reload)
    lab.do(StartAll())
    for kind, drawn in events:
        if lab.ended is not None:
            break
        run = sorted(lab.live)[drawn % len(lab.live)] if lab.live else 0
        match kind:
            case "loaded":
                lab.do(ChildLoaded(run))
            case "serves":
                lab.do(ChildServes(run, 3.0))
            case "ready":
                lab.do(ChildReady(run))
            case "exit" if run:
                lab.exit(run, drawn % 4)
            case "change":
                lab.do(SourceChanged())
            case "tick":
                lab.wait(drawn % 12)
            case "stop":
                lab.do(Interrupt())
    if lab.ended is None:
        lab.do(Interrupt())
    for run in list(lab.live):
        lab.exit(run)
    assert lab.ended is not None
