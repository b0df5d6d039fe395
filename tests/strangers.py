"""Who connects and does not keep the protocol: raw TCP connections that speak just enough ZMTP."""

from __future__ import annotations

import socket
import struct
import time

from tests.waiting import PATIENCE_S

MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)

PING, PONG = b"\x04PING", bytes((COMMAND, 5)) + b"\x04PONG"


def frame(body: bytes, *, more: bool = False) -> bytes:
    """One part of a message, as ZMTP 3 frames it."""
    flags = MORE if more else 0
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | LONG,)) + struct.pack(">Q", len(body)) + body


def message(*parts: bytes) -> bytes:
    """All parts of one."""
    *first, last = parts
    return b"".join(frame(part, more=True) for part in first) + frame(last)


def _ready(kind: bytes) -> bytes:
    body = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", len(kind)) + kind
    return bytes((COMMAND, len(body))) + body


def _over() -> bytes:
    raise ConnectionError("ended while shaking hands")


class Stranger:
    """One connection. It sends any bytes until the other side ends the connection, or has taken
    nothing for `patience` seconds: TCP does not always tell that nobody is there any more."""

    def __init__(self, port: int, kind: bytes = b"DEALER", patience: float = PATIENCE_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.settimeout(PATIENCE_S)
        self.socket.sendall(GREETING + _ready(kind))
        self._read(len(GREETING))
        self.patience = patience
        self._read(self._read(2)[1])  # its own settings; before that no message may come

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def _read(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            got += self.socket.recv(size - len(got)) or _over()
        return got

    def send(self, data: bytes) -> bool:
        """Whether the connection still stood."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def flood(self, data: bytes, times: int) -> int:
        """Send it again and again; how often the connection took it."""
        self.socket.settimeout(self.patience)
        done = 0
        while done < times and self.send(data):
            done += 1
        self.socket.settimeout(PATIENCE_S)
        return done

    def ended(self) -> bool:
        """Wait until the other side has ended the connection, and return True; False if it does not
        end. Heartbeats are answered, so that the end is not caused by missing ones."""
        deadline = time.monotonic() + PATIENCE_S
        try:
            while got := self.socket.recv(65536):
                self.socket.sendall(PONG * got.count(PING))
                if time.monotonic() > deadline:
                    return False
        except TimeoutError:
            return False
        except OSError:
            pass
        return True
