"""`report`: one file with everything that others need to find a fault.

    cluster/   the pages that one node has for the whole cluster, and of each type its shards
    nodes/     of each member its settings, metrics, health, membership, tasks, log: its own pages
    doctor     the doctor's findings, and the explanations of the entities and shards in them
    versions   of this command and of every member

Members are asked side by side. One that does not answer a page in time is asked for no other, so it
costs `TIMEOUT_S` of `node_http`, however many pages there are. After `DEADLINE_S` nothing more is
read. The report names all that cannot be read; it is written all the same, as long as one node
answers.

`report_bundle` bounds, masks and packs the files.

Source: docs/how-to/operate.md; N.21.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, NamedTuple

import typer
from msgspec.structs import asdict

from shardbus.admin.diagnosis import ADVICE, Finding, Picture, findings
from shardbus.admin.warning_signs import warning_signs
from shardbus_cli import output
from shardbus_cli.any_node import http_urls
from shardbus_cli.doctor import look
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import SILENT, NodeHttp, own_token
from shardbus_cli.parameters import NODE_URL, NodeUrl
from shardbus_cli.report_bundle import ReportBundle, folder_of, subjects_of

CLUSTER_PAGES = (
    "cluster", "nodes", "types", "overview", "findings", "load", "slow", "checkup",
    "events/recent", "dead-letters", "outboxes",
)  # fmt: skip
TYPE_PAGES = ("shards", "limit", "places")
NODE_PAGES = ("cluster", "settings", "gossip", "downing", "tasks", "log")
METRICS = ("metrics",)
AT_ONCE, TYPES, SUBJECTS, MEMBERS = 8, 100, 20, 200
"""Members that are asked at once; types, explained subjects and members of a report, at most."""
DEADLINE_S = 60.0
"""After which no further page is read."""
PART_MAX = 100
"""Characters of an id in the name of a file."""
SHOWN = 10
"""Missing things that are printed."""
README = """\
A report of `shardbus report`. Secrets, tokens and passwords are masked; ids of entities, addresses
and the texts of errors are not: look through it before you give it away.

summary.json    what is in the report     missing.json  what is not, and why
doctor.json     what the doctor found
cluster/        pages of the whole cluster, as the asked node has them; below explain/ the entities
                and shards that the doctor names
nodes/          pages that only the member itself has: among them tasks.json, where its tasks wait
versions.json   of this command and of every member
"""


def report(
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The file; in this directory by default."),
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write one file with all that helps to find a fault: secrets masked, bounded in size."""
    http = NodeHttp(node)
    picture = look(http, None)
    bundle = ReportBundle([own_token()])
    path = out if out is not None else Path(_name(picture))
    _check_new(path)
    faults = [*findings(picture), *warning_signs(picture)]
    bundle.add("README.txt", README)
    answered = _collect(bundle, http, picture, faults)
    files = len(bundle.files) + 2
    summary = {
        "cluster": picture.cluster.get("cluster"),
        "asked": http.url,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "members": len(picture.members),
        "answered": answered,
        "findings": len(faults),
        "files": files,
        "missing": len(bundle.missing),
    }
    bundle.add_json("summary.json", summary)
    size = _write(path, bundle.zipped())
    if as_json:
        output.data(output.as_json({"file": str(path), "bytes": size, **summary}))
        return
    output.data(f"{path}: {size / 1024:.0f} KiB, {output.counted(files, 'file')}")
    missing = output.counted(len(bundle.missing), "thing is missing", "things are missing")
    output.data(
        f"    {answered} of {output.counted(len(picture.members), 'member')} answered over HTTP,"
        f" the doctor has {output.counted(len(faults), 'finding')}, {missing}"
    )
    for name, why in list(bundle.missing.items())[:SHOWN]:
        output.data(output.safe(f"    missing: {name}: {why}"))
    output.data("    ids, addresses and texts of errors are in it: look before you give it away")


def _name(picture: Picture) -> str:
    cluster = folder_of(str(picture.cluster.get("cluster"))).removeprefix("nodes/")[:60]
    return f"shardbus-report-{cluster}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.zip"


def _check_new(path: Path) -> None:
    if path.exists():
        raise CommandFailure(f"{path} exists", "name another file with --out")
    if not path.parent.is_dir():
        raise CommandFailure(f"there is no directory {path.parent}", code=ExitCode.USAGE)


def _write(path: Path, data: bytes) -> int:
    """Write the file, which only this user may read."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            return file.write(data)
    except OSError as failed:
        raise CommandFailure(f"{path} cannot be written: {failed.strerror}") from None


def _collect(bundle: ReportBundle, http: NodeHttp, picture: Picture, faults: list[Finding]) -> int:
    """Put everything into the bundle. Returns how many members answered over HTTP."""
    from shardbus.admin.build_versions import build_versions

    until = time.monotonic() + DEADLINE_S
    bundle.add_json("doctor.json", [asdict(f) | {"advice": ADVICE[f.check]} for f in faults])
    members = {node: row.get("versions") for node, row in picture.answers.items()}
    bundle.add_json("versions.json", {"this command": build_versions(), "members": members})
    pages = [ReportPage(page, ("v1", *page.split("/"))) for page in CLUSTER_PAGES]
    for subject in subjects_of(faults, picture, SUBJECTS):
        name = f"explain/{subject.entity_type}/{subject.entity_id or f'shard {subject.shard}'}"
        ids = (subject.entity_id,) if subject.entity_id else ()
        query = {} if subject.entity_id else {"shard": subject.shard}
        pages.append(ReportPage(name, ("v1", "explain", subject.entity_type, *ids), query))
    for kind in list(picture.shards)[:TYPES]:
        pages += [ReportPage(f"{page}/{kind}", ("v1", page, kind)) for page in TYPE_PAGES]
    _keep(bundle, _read("cluster", http, pages, until))
    return _collect_members(bundle, http, picture, until)


class ReportPage(NamedTuple):
    """A file of the report, and the path and the query of the page that it holds."""

    name: str
    path: tuple[str, ...]
    query: Mapping[str, str] = MappingProxyType({})


Texts = dict[str, str | CommandFailure]


def _read(folder: str, node: NodeHttp, pages: list[ReportPage], until: float) -> Texts:
    """Read pages of one node, by file. Once it does not answer, or the time is over, the rest fails
    at once."""
    texts: Texts = {}
    stop: CommandFailure | None = None
    for page in pages:
        ending = "txt" if page.path == METRICS else "json"
        file = f"{folder}/{_safe(page.name)}.{ending}"
        if stop is None and time.monotonic() >= until:
            stop = CommandFailure(f"not read within {DEADLINE_S:g} s")
        if stop is not None:
            texts[file] = stop
            continue
        try:
            texts[file] = _text(node, page)
        except CommandFailure as failure:
            texts[file] = failure
            if failure.message.startswith(SILENT):
                stop = failure
    return texts


def _text(node: NodeHttp, page: ReportPage) -> str:
    if len(page.path) == 1 and page.path != METRICS:
        return node.probe(page.path[0])[1]
    return node.get(*page.path, **page.query)


def _safe(name: str) -> str:
    """Return a name that stays in its folder, since ids may be `..`, and that every file system
    takes."""
    from urllib.parse import quote

    parts = (part if part.strip(".") else part.replace(".", "%2E") for part in name.split("/"))
    return "/".join(quote(part, safe="% ")[:PART_MAX] or "_" for part in parts)


def _keep(bundle: ReportBundle, texts: Texts) -> None:
    for name, text in texts.items():
        if isinstance(text, CommandFailure):
            bundle.miss(name, text.message)
        else:
            bundle.add(name, text)


def _collect_members(bundle: ReportBundle, http: NodeHttp, picture: Picture, until: float) -> int:
    """Add the pages that only the members themselves have. Returns how many answered."""
    urls = http_urls(http.url, picture.nodes)[:MEMBERS]
    reached = {node for node, _ in urls}
    for row in picture.members:
        if row.get("node") not in reached:
            bundle.miss(folder_of(str(row.get("node"))), "it has no HTTP interface")
    pages = [ReportPage(page, ("v1", page)) for page in NODE_PAGES]
    pages += [ReportPage(page, (page,)) for page in ("readyz", "livez", *METRICS)]

    def read(place: tuple[str, str]) -> Texts:
        folder = folder_of(place[0])
        try:
            node = NodeHttp(place[1])
        except CommandFailure as failure:  # the member announces no address that can be asked
            return {folder: failure}
        return _read(folder, node, pages, until)

    answered = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for texts in pool.map(read, urls):
            answered += any(isinstance(text, str) for text in texts.values())
            _keep(bundle, texts)
    return answered
