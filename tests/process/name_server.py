"""A small name server on a machine of the test: one name, whose addresses change at any time."""

from __future__ import annotations

import shutil
import socket
import struct
import threading
from pathlib import Path

from tests.process.namespaces import FILES, Machine, inside

A, NAME_ERROR, ANSWER = 1, 3, 0x8580


class NameServer:
    """Answers questions for `name` with `addresses`, in a thread. Other names do not exist."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.name = name
        self.addresses: list[str] = []
        self._closing = False
        self._address = machine.address
        self._folders: list[Path] = []
        with inside(machine.name):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.bind((machine.address, 53))
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def serves(self, machine: Machine) -> None:
        """Let the processes on this machine ask here."""
        folder = FILES / machine.name
        folder.mkdir(parents=True)
        self._folders.append(folder)
        (folder / "resolv.conf").write_text(f"nameserver {self._address}\n")
        (folder / "nsswitch.conf").write_text("hosts: dns\n")

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._socket.close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _serve(self) -> None:
        while not self._closing:
            try:
                question, sender = self._socket.recvfrom(512)
            except TimeoutError:
                continue
            self._socket.sendto(self.answer(question), sender)

    def answer(self, question: bytes) -> bytes:
        """The answer to one question, with every address of the name."""
        labels, at = [], 12
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode())
            at += 1 + length
        end = at + 5
        [kind] = struct.unpack("!H", question[at + 1 : at + 3])
        is_name = ".".join(labels).lower() == self.name
        addresses = self.addresses if is_name and kind == A else []
        flags = ANSWER if is_name else ANSWER | NAME_ERROR
        head = question[:2] + struct.pack("!HHHHH", flags, 1, len(addresses), 0, 0)
        records = b"".join(
            struct.pack("!HHHIH", 0xC00C, A, 1, 0, 4) + socket.inet_aton(address)
            for address in addresses
        )
        return head + question[12:end] + records
