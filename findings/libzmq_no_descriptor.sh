#!/bin/bash
# pyzmq 27.3.0 (libzmq 4.3.5), a ROUTER that listens in a process with no file descriptor left.
#
# Expected: a connection that cannot be accepted waits in the kernel's queue, as with asyncio, which tries again after a
#   second. The process is idle, and an open connection goes on.
# Behaviour: the open connection does go on. But one connection that waits keeps libzmq's thread in a loop without a
#   pause: it polls, tries to accept and gets EMFILE, for as long as the peer waits. An idle process takes a whole core.
#   A descriptor that becomes free ends it.
# So who embeds libzmq must keep a descriptor in reserve, and accept and close what waits in its place.
# Output seen (on a machine with a core to spare; others may leave it less):
#   asyncio: EMFILE, cores 0.0
#   libzmq: EMFILE, cores 1.0, the open connection answers: True
#   libzmq with a descriptor again: cores 0.0, the new connection answers: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyzmq==27.3.0
cat > "$folder/peer.py" <<'PY'
"""Connects when told to, in a process with descriptors of its own: `tcp PORT` or `zmq PORT`."""
import socket
import sys

import zmq

kept = []
for line in sys.stdin:
    how, port = line.split()
    if how == "tcp":
        kept.append(socket.create_connection(("127.0.0.1", int(port))))
    else:
        dealer = zmq.Context.instance().socket(zmq.DEALER)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        kept.append(dealer)
    for one in kept:
        if isinstance(one, zmq.Socket):
            one.send(b"hello")
    print("done", flush=True)
PY
cat > "$folder/program.py" <<'PY'
import asyncio
import os
import resource
import subprocess
import sys
import time

import zmq

SECONDS = 2.0
peer = subprocess.Popen(
    [sys.executable, sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
hoard = []


def connect(how, port):
    peer.stdin.write(f"{how} {port}\n")
    peer.stdin.flush()
    assert peer.stdout.readline() == "done\n"


def use_up():
    try:
        while True:
            hoard.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass


def release():
    while hoard:
        os.close(hoard.pop())


def cores():
    used, began = time.process_time(), time.monotonic()
    time.sleep(SECONDS)
    return (time.process_time() - used) / (time.monotonic() - began)


async def with_asyncio():
    """Return the cores that an asyncio server takes while a connection waits."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    use_up()
    connect("tcp", port)
    used, began = time.process_time(), time.monotonic()
    await asyncio.sleep(SECONDS)
    share = (time.process_time() - used) / (time.monotonic() - began)
    release()
    server.close()
    return share


def answers(router):
    """True if a message of a connection arrives."""
    return bool(router.poll(5000)) and router.recv_multipart()[1] == b"hello"


waits = asyncio.run(with_asyncio())
print(f"asyncio: EMFILE, cores {waits:.1f}")

context = zmq.Context()
router = context.socket(zmq.ROUTER)
port = router.bind_to_random_port("tcp://127.0.0.1")
connect("zmq", port)
assert answers(router)
use_up()
connect("zmq", port)  # the peer's first connection sends again, the second waits
old = answers(router)
spins = cores()
print(f"libzmq: EMFILE, cores {spins:.1f}, the open connection answers: {old}")
release()
new = answers(router)
rests = cores()
print(f"libzmq with a descriptor again: cores {rests:.1f}, the new connection answers: {new}")
peer.kill()
assert waits < 0.05 and rests < 0.05 and old and new, "behaves otherwise"
assert spins > 0.1, "libzmq pauses now"
PY
timeout 60 "$folder/venv/bin/python" "$folder/program.py" "$folder/peer.py"
