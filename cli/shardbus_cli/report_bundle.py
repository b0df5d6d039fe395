"""The files of a report: bounded in size, without secrets, with a list of missing parts.

**Secrets.** Pages come from the nodes with their secrets masked. Here every text passes a second
net: a URL with a user gets the project's one mask (`store.urls.mask_url`), and the token of the
command itself is masked wherever it stands.

**Bounds.** A file is cut at `FILE_BYTES`; once the bundle has `BUNDLE_BYTES`, further files are
left out. `missing.json` names the parts that were cut, left out or unreadable.

**A zip, not a tar.gz**: each file can be read without unpacking the others, every desktop opens it,
and a bundle that was cut on its way is noticed by the sums of its files.

Source: docs/how-to/operate.md; N.21.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from io import BytesIO
from typing import NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile

from shardbus.admin.diagnosis import Finding, Picture

FILE_BYTES = 4 * 2**20
BUNDLE_BYTES = 64 * 2**20
MASK = "***"
MISSING = "missing.json"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>\\]*@[^\s\"'<>\\]*")
_UNUSUAL = re.compile(r"[^A-Za-z0-9._-]+")


class ReportBundle:
    """Collects the files of a report. `secrets`: texts that must not be in it."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.files: dict[str, bytes] = {}
        self.missing: dict[str, str] = {}
        """The parts that could not be read, were cut or left out, and why."""
        self.size = 0
        self._secrets = tuple(secret for secret in secrets if secret)

    def add(self, name: str, text: str) -> None:
        """Add a file. Of one that is too long, the beginning."""
        data = self.masked(text).encode()
        if len(data) > FILE_BYTES:
            self.missing[name] = f"cut at {FILE_BYTES} of {len(data)} bytes"
            data = data[:FILE_BYTES]
        if self.size + len(data) > BUNDLE_BYTES:
            self.missing[name] = f"left out: the report has {BUNDLE_BYTES} bytes"
            return
        self.files[name] = data
        self.size += len(data)

    def add_json(self, name: str, value: object) -> None:
        """Add a value as JSON that people can read."""
        self.add(name, json.dumps(value, indent=1, ensure_ascii=False))

    def miss(self, name: str, why: str) -> None:
        """Note that a file cannot be had."""
        self.missing[name] = self.masked(why)

    def masked(self, text: str) -> str:
        """Return the text without the command's own secrets and without passwords in URLs."""
        from shardbus.store.urls import mask_url

        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return _URL.sub(lambda match: mask_url(match.group()), text)

    def zipped(self) -> bytes:
        """Return the bundle as a zip file, with the list of missing parts."""
        buffer = BytesIO()
        with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
            for name, data in self.files.items():
                archive.writestr(name, data)
            archive.writestr(MISSING, json.dumps(self.missing, indent=1, ensure_ascii=False))
        return buffer.getvalue()


def folder_of(node: str) -> str:
    """Return the folder of a node's files: its name, with letters that every file system takes."""
    return f"nodes/{_UNUSUAL.sub('_', node)}"


ENTITIES = ("hot-entity", "backlog", "state-unreadable")
"""Findings whose subjects are entities, or members."""
SHARDS = (
    "hot-shard", "unallocated", "starting", "moving", "not-hosted", "hosted-elsewhere",
    "hosted-twice", "home-gone",
)  # fmt: skip
"""Findings whose subjects are shards."""


class Subject(NamedTuple):
    """An entity or a shard that a finding names."""

    entity_type: str
    entity_id: str = ""
    shard: str = ""


def subjects_of(faults: Iterable[Finding], picture: Picture, most: int) -> list[Subject]:
    """Return up to `most` entities and shards that these findings name."""
    subjects: dict[Subject, None] = {}
    for fault in faults:
        if fault.of not in picture.shards:
            continue
        if fault.check in ENTITIES and fault.subject not in picture.answers:
            subjects[Subject(fault.of, entity_id=fault.subject)] = None
        elif fault.check in SHARDS:
            subjects[Subject(fault.of, shard=fault.subject)] = None
    return list(subjects)[:most]
