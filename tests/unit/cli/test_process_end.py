"""No signal is lost before a command handles signals, and nothing keeps a process whose work is
done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S, until

BEGIN = """
import atexit, os, signal, sys, threading, time
from shardbus_cli import process_end
from shardbus_cli.process_end import ProcessEnd
process_end.EARLY_S = process_end.END_S = {seconds}
atexit.register(lambda: os.write(2, b"atexit "))
end = ProcessEnd({command!r})
end.handle_signals()
"""
HERE = "os.write(2, b'here ')\n"
SLEEPS = f"""
try:
    {HERE}
    time.sleep(3600)
finally:
    os.write(2, b"finally ")
"""
CATCHES = f"""
while True:
    try:
        {HERE}
        time.sleep(3600)
    except BaseException:
        os.write(2, b"caught ")
"""
IN_ONE_CALL = f"""
import ctypes
mutex = ctypes.create_string_buffer(64)
try:
    {HERE}
    time.sleep(3600)
finally:
    os.write(2, b"finally ")
    while True:
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""
IN_A_THREAD = f"""
threading.Thread(target=time.sleep, args=(3600,)).start()
{HERE}
time.sleep(3600)
"""


def start(program: str, command: str = "node", seconds: float = 3600.0) -> subprocess.Popen[bytes]:
    """Start a process that writes `here` to standard error once it is there."""
    begin = BEGIN.format(command=command, seconds=seconds)
    process = subprocess.Popen(
        [sys.executable, "-c", begin + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    assert process.stderr is not None
    assert process.stderr.read(5) == b"here "
    return process


def ended(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Return the exit code of a process and the rest of its output."""
    assert process.stdout is not None
    assert process.stderr is not None
    code = process.wait(PATIENCE_S)
    said = process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    return code, said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_node_is_there_ends_its_process_in_order(number: int) -> None:
    process = start(SLEEPS)
    process.send_signal(number)
    assert ended(process) == (0, b"finally atexit ")


def test_code_that_catches_the_exit_ends_a_moment_later() -> None:
    process = start(CATCHES, seconds=0.2)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


def test_a_thread_of_the_application_does_not_keep_it() -> None:
    process = start(IN_A_THREAD, seconds=0.2)
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


def test_a_second_signal_ends_it_at_once() -> None:
    process = start(CATCHES)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert process.stderr.read(7) == b"caught "
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


async def test_a_second_signal_ends_it_while_no_instruction_of_python_runs() -> None:
    process = start(IN_ONE_CALL)
    process.send_signal(signal.SIGTERM)
    wchan = Path(f"/proc/{process.pid}/task/{process.pid}/wchan")
    await until(lambda: "futex" in wchan.read_text(), "the call")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 0


def test_other_commands_end_as_by_the_signal() -> None:
    process = start(SLEEPS, command="nodes")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (-signal.SIGTERM, b"")


def test_a_signal_that_came_while_the_process_started_anew_is_not_lost() -> None:
    blocked = "signal.pthread_sigmask(signal.SIG_BLOCK, process_end.SIGNALS)\n"
    pending = f"os.kill(os.getpid(), signal.SIGTERM)\n{HERE}end.handle_signals()\ntime.sleep(3600)"
    assert ended(start(blocked + pending))[0] == 0


LEFT_BEHIND = f"""
{HERE}
threading.Thread(target=time.sleep, args=(3600,)).start()
end.finish(7)
sys.exit(7)
"""


def test_a_thread_that_does_not_end_keeps_no_process_whose_work_is_done() -> None:
    assert ended(start(LEFT_BEHIND, seconds=0.2))[0] == 7


NAMED = f"""
process_end.NOTE_S = 0.0
{HERE}
ends = threading.Event()
threading.Thread(target=ends.wait, args=(3600,), name="importer").start()
threading.Thread(target=time.sleep, args=(3600,), daemon=True, name="unseen").start()
written = os.write
def write(descriptor, line):
    try: return written(descriptor, line)
    finally: ends.set()
os.write = write
end.finish(7)
sys.exit(7)
"""


def test_a_thread_that_keeps_the_process_is_named() -> None:
    code, said = ended(start(NAMED))
    line = b"shardbus: the process waits for threads that are no daemons: importer; 3600 s more"
    assert (code, said.splitlines()[0]) == (7, line + b" at most")


def test_a_reader_that_stands_still_keeps_no_process_whose_work_is_done() -> None:
    fills = "os.set_blocking(1, False)\ntry:\n while True: os.write(1, b'x' * 4096)\n"
    fills += "except BlockingIOError: os.set_blocking(1, True)\n"
    stuck = f"{fills}sys.stdout.write('x' * 8000)\n{HERE}end.finish(7)\nsys.exit(7)"
    assert ended(start(stuck, seconds=0.2))[0] == 7


def test_a_reader_that_has_ended_changes_no_exit_code() -> None:
    goes_on = f"sys.stdout.write('x')\n{HERE}sys.stdin.read()\nend.finish(0)\nsys.exit(0)"
    begin = BEGIN.format(command="node", seconds=3600.0)
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", begin + goes_on],
        stdin=subprocess.PIPE,
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    os.close(writing)
    os.close(reading)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (0, b"here atexit ")


IN_ORDER = f"""
import gc
from threading import Thread
left_open = open({{file!r}}, "w")
left_open.write("whole")
gc.freeze()
def ends():
    time.sleep(0.05)
    os.write(2, b"thread ")
def goes_on():
    while True: sum(range(100))
{HERE}
Thread(target=ends).start()
Thread(target=goes_on, daemon=True).start()
sys.stdout.write("out")
end.finish(3)
atexit.register(os.write, 2, b"later ")
try: sys.exit(3)
finally: os.write(2, b"unwound ")
"""


def test_the_end_is_in_order_whatever_daemon_threads_do(tmp_path: Path) -> None:
    """As the interpreter would: threads, the functions of `atexit`, the frames of callers, open
    files."""
    file = tmp_path / "file"
    process = start(IN_ORDER.format(file=str(file)))
    assert process.stdout is not None
    said = process.stdout.read()
    assert ended(process) == (3, b"thread atexit unwound later ")
    assert (said, file.read_text()) == (b"out", "whole")


NEVER_BACK = f"""
class Hangs:
    def __del__(self):
        os.write(2, b"deleted ")
        time.sleep(3600)
kept = Hangs()
{HERE}
end.finish(0)
sys.exit(0)
"""


def test_the_interpreter_is_not_taken_apart() -> None:
    """Where daemon threads would run into it."""
    assert ended(start(NEVER_BACK)) == (0, b"atexit ")
