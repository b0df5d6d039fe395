#!/bin/sh
# A ZeroMQ socket that has once met a peer of an incompatible kind never connects again.
#
# pyzmq 27.3.0 (libzmq 4.3.5). A DEALER connects to a port where an XPUB is bound. The handshake fails, because the two kinds
# do not go together. One would expect what ZeroMQ does after every other failure: connect again after RECONNECT_IVL, for
# ever. It does not. Its monitor reports CONNECTED and DISCONNECTED, but neither HANDSHAKE_FAILED_* nor CONNECT_RETRIED,
# and when a ROUTER is bound to the same port later, the DEALER does not find it. Sends to it go on without an error, into
# its queue. A second DEALER, made later, is connected at once. So where ports may be mixed up, or change hands (two ports of
# one service that swap, a deployment that starts another service first), the connecting side has to notice the silence by
# itself and make a new socket.
#
# Seen (2026-11-28, Python 3.11):
#   other kind: CONNECT_DELAYED CONNECTED DISCONNECTED, then nothing
#   right kind on the same port: old socket not connected after 3 s, new socket connected
#   a peer that only went away: old socket connected again
set -eu
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
"${PYTHON:-python3}" -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check pyzmq==27.3.0
"$home/v/bin/python" - <<'END'
import time
import zmq
from zmq.utils.monitor import parse_monitor_message

assert zmq.zmq_version() == "4.3.5", zmq.zmq_version()
NAMES = {getattr(zmq, n): n[6:] for n in dir(zmq) if n.startswith("EVENT_") and "ALL" not in n}
context = zmq.Context()


def bound(kind, port=None):
    made = context.socket(kind)
    made.linger = 0
    end = time.monotonic() + 5
    while port is not None:
        try:
            made.bind(f"tcp://127.0.0.1:{port}")
            return made, port
        except zmq.ZMQError:  # the former socket is about to close
            assert time.monotonic() < end
            time.sleep(0.02)
    return made, made.bind_to_random_port("tcp://127.0.0.1")


def dialler(kind, port):
    made = context.socket(kind)
    made.linger, made.reconnect_ivl = 0, 50
    monitor = made.get_monitor_socket(addr=f"inproc://monitor-{id(made)}")
    made.connect(f"tcp://127.0.0.1:{port}")
    return made, monitor


def events(monitor, seconds):
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        if monitor.poll(50):
            found.append(NAMES[parse_monitor_message(monitor.recv_multipart())["event"]])
    return found


for kind, other, right in ((zmq.DEALER, zmq.XPUB, zmq.ROUTER),):
    wrong, port = bound(other)
    old, old_monitor = dialler(kind, port)
    seen = events(old_monitor, 2)
    print(kind.name, "meets", other.name, seen)
    assert seen == ["CONNECT_DELAYED", "CONNECTED", "DISCONNECTED"], seen
    wrong.close()
    peer, _ = bound(right, port)
    late = events(old_monitor, 3)
    new, new_monitor = dialler(kind, port)
    fresh = events(new_monitor, 2)
    print("then a", right.name, "at the same port: old", late, "new", fresh)
    assert late == [], late
    assert "HANDSHAKE_SUCCEEDED" in fresh, fresh

    peer.close()  # a peer that only goes away is found again, which is the rule that one expects
    events(new_monitor, 1)
    peer, _ = bound(right, port)
    again = events(new_monitor, 3)
    print("a peer that only went away: the socket is", again[-1:], "again")
    assert "HANDSHAKE_SUCCEEDED" in again, again
END
echo "as described: no second attempt after a peer of another kind"
