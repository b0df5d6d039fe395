"""Every task ends loudly: the code starts none whose result nobody watches.

A task belongs to a `TaskSet` or goes through `watch`, which log and count its error. The others are
listed here, each with who takes its result. The list has no entry that the code does not need.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syntax import tree_of

ROOT = Path(__file__).resolve().parent.parent
STARTS = {"create_task", "ensure_future", "run_coroutine_threadsafe"}
WATCHED = {
    "shardbus/task_set.py _task": "`spawn` hands it to `watch`",
    "shardbus/replica/joining.py Joining._start": "it goes through `watch`",
    "shardbus/client/regions.py ClientRegions.batch": "`ended` takes the error, which `not_sent`"
    " has counted",
    "shardbus/client/unknown_types.py HeldMessage.send": "it waits for room, which never fails",
    "shardbus/node/run.py run_to_end": "`run_until_complete` returns its result",
    "shardbus/http/server.py Server.start": "one goes through `watch`; the other only waits for an"
    " event, and `start` waits for it",
    "shardbus/node/shutdown_phases.py Phases.run": "`_guarded` logs every error; `mine.result()`"
    " is raised",
    "shardbus/node/run.py _unless_stopped": "`doing.result()` is returned; the other only waits for"
    " a signal",
    "shardbus/node/run.py _NodeRun._live": "it only waits for a signal",
    "shardbus/node/run.py _NodeRun._leave": "`leaving.result()` is read; the other only waits for a"
    " signal",
    "shardbus/node/shutdown.py leave": "it is awaited, or cancelled when the node was downed",
    "shardbus/embedding.py EmbeddedNode._until_ready": "its result is read, or it is cancelled",
    "shardbus/embedding.py EmbeddedNode._unless_asked_to_end": "its result is returned, or it is"
    " cancelled",
    "shardbus/embedding.py _OwnReplica.until_usable": "its result is returned, or it is cancelled",
    "shardbus/admin/shared_answer.py SharedAnswer.get": "each reader waits for its result; without"
    " one there is nobody to tell",
    "shardbus/store/guarded.py GuardedStore._call": "`end` hands the result or the error to the"
    " caller",
    "shardbus/shells/prober.py Prober._attempt": "`gather` takes both results",
    "shardbus/store/ring_reading.py RingReader.copy": "its results are read, and `_end` takes the"
    " errors of the others",
    "shardbus/store/ring_reading.py RingReader._digests": "the same",
    "shardbus/store/redis_sentinels.py Sentinels.discover_master": "`gather` takes the results that"
    " the first majority leaves",
    "shardbus/transport/tcp_probe.py open_probe": "`as_completed` takes each result",
    "shardbus/entities/deferred.py DeferredWork.begin": "`_done` hands the result or the error to"
    " the entity",
    "shardbus/client/towards.py Towards._deliver": "the caller gets it, as of any tell",
    "shardbus/client/stored.py call_each": "`gather` takes the results",
    "shardbus/client/work_queue.py ClientQueue.run": "the group raises its error",
    "shardbus/client/thread_bridge.py ThreadBridge._begin": "the waiting thread gets its result or"
    " its error",
    "shardbus/client/thread_bridge.py ThreadBridge._send": "it waits for room, which never fails",
    "shardbus/simulation/nodes/world.py SimProcess.spawn": "the loop's exception handler records a"
    " defect",
    "shardbus/simulation/nodes/world.py SimNode.__init__": "the loop's exception handler records a"
    " defect",
    "shardbus/simulation/nodes/world.py SimNode._live": "it only waits for an event",
    "shardbus/testing/journal_suite.py JournalSuite"
    ".test_an_append_that_was_given_up_is_in_what_is_opened_or_never_applied": "it is given up",
    "shardbus/testing/store_suite.py cancel_some": "`gather` takes the results",
    "shardbus/testing/store_suite.py"
    " StateTests.test_a_load_comes_after_a_save_that_was_given_up": "it is given up",
    "shardbus/testing/store_suite.py"
    " StateTests.test_a_save_comes_after_one_that_was_given_up_before_a_load": "it is given up",
    "shardbus/testing/virtual_time.py VirtualTime.begin": "the test awaits it; a failure that it"
    " did not await is raised when the cluster ends",
    "cli/shardbus_cli/bench.py _within": "it waits for what the caller reads afterwards",
}


def starts(tree: ast.Module) -> Iterator[tuple[str, ast.Call, bool]]:
    """Yield each call that starts a task: the function it is in, the call, and whether its result
    is dropped at once."""

    def walk(
        node: ast.AST, names: tuple[str, ...], parent: ast.AST
    ) -> Iterator[tuple[str, ast.Call, bool]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = (*names, node.name)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in STARTS:
                yield ".".join(names[:2]), node, isinstance(parent, ast.Expr)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, names, node)

    for child in tree.body:
        yield from walk(child, (), tree)


def in_code() -> Iterator[tuple[str, bool]]:
    for folder in ("shardbus", "cli"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name, _, dropped in starts(tree_of(file)):
                yield f"{file.relative_to(ROOT)} {name}", dropped


def test_no_task_is_without_an_owner() -> None:
    starts_of = dict(in_code())
    dropped = [name for name, bare in starts_of.items() if bare]
    assert dropped == ["shardbus/simulation/nodes/world.py SimProcess.spawn"]
    assert sorted(starts_of.keys() - WATCHED.keys()) == [], (
        "use a TaskSet, or say who takes the result"
    )
    assert sorted(WATCHED.keys() - starts_of.keys()) == [], "these entries are not needed"


@pytest.mark.parametrize(
    ("code", "name", "dropped"),
    [
        ("class A:\n async def f(self):\n  asyncio.create_task(self.g())", "A.f", True),
        ("async def f():\n t = loop.create_task(g())", "f", False),
        ("def f():\n  x = lambda: ensure_future(g())", "f", False),
        ("def f():\n  def inner():\n    asyncio.run_coroutine_threadsafe(g(), l)", "f.inner", True),
    ],
)
def test_the_finder_finds(code: str, name: str, dropped: bool) -> None:
    [(start, _, bare)] = starts(ast.parse(code))
    assert (start, bare) == (name, dropped)
