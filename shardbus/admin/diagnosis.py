"""Find the faults of a cluster in its pages. Pure, so that every finding has a test.
`warning_signs` finds the faults that will come soon.

A `Picture` holds the pages of one examination, as one node has them. `findings` compares them with
each other; `stored` compares a stored table with itself and with the pages. A finding concerns one
subject (a member, a shard) of a group (the members, a type), so that examinations can be compared.

**No false alarm.** A cluster that starts, a member that joins or leaves, and a coordinator that
changes its node pass through states that are faults only if they last. There are two rules:

    a state whose begin is recorded    a finding once it has lasted for the time in `AFTER_S`
    a contradiction between pages,     `PASSING`: pages are read one after the other, so it is
                                       confirmed by a second examination

A node that asks is alive, so a state that only a dead or unreachable member explains is found at
once.

A page may be missing or come from another version, so no field of it is relied upon. A page without
ages is judged as if everything had lasted.

Source: N.6; docs/reference/cli.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shardbus.quantities import counted

if TYPE_CHECKING:
    from shardbus.store.protocol import StoredTable

LASTING = float("inf")
LATE_S = 1.0
CLOCK_S = 2.0
RECENT_S = 60.0
EPOCH_SHIFT = 32
"""The bits of a fence above this one are the epoch in which it was drawn."""
EPOCH_HIGH = 2**30 - 1
"""Half of all epochs; a cluster with a new epoch every second reaches it after 34 years."""
MEMBERS, CLUSTER, STORE = "members", "cluster", "store"
NOT_SERVING = "a replica does not serve: "
"""The beginning of such a problem of the store. The address and the reason follow."""
OF_TYPES = "sharding.types."
"""Begins the name of a setting of one entity type."""

JOIN_S, LEAVE_S, CONVERGE_S, COORDINATOR_S, MOVE_S, WAIT_S = 30.0, 90.0, 15.0, 10.0, 30.0, 10.0
"""Seconds after which it is a fault that a member has not joined, that one has not left, that the
members do not agree, that a type has no coordinator or a region is not registered with it, that a
shard still moves or starts, and that messages still wait for the home of a shard."""
START_S = 10.0
"""Seconds for which a member that is up may still be busy with its start."""
EXIT_S = 30.0
"""Seconds for which a member that exits may be unreachable: its process ends before it is
removed."""
STATUS_S = {
    "joining": JOIN_S,
    "weakly_up": JOIN_S,
    "leaving": LEAVE_S,
    "exiting": EXIT_S,
    "preparing_for_shutdown": LEAVE_S,
    "ready_for_shutdown": LEAVE_S,
}
"""Seconds for which it is normal that a member has a status."""

PASSING = frozenset(
    {
        "silent",
        "not-registered",
        "coordinator-silent",
        "coordinator-disputed",
        "unallocated",
        "not-hosted",
        "hosted-elsewhere",
        "hosted-twice",
        "home-gone",
        "store-behind",
        "store-ahead",
    }
)
"""Checks that compare pages, and may find changes in between."""
FAULTS = frozenset(
    {
        "unreachable",
        "silent",
        "suspended",
        "no-coordinator",
        "coordinator-silent",
        "other-cluster",
        "hosted-twice",
        "store-silent",
        "store-errors",
        "store-behind",
        "store-ahead",
        "stored-damaged",
        "deaf-entity",
        "late",
    }
)
"""Checks that find stopped messages or possible loss of data; the others are warnings."""

ADVICE = {
    "page": "check whether the node's shardbus is older than this command",
    "not-ready": "a node is ready when it is Up and its regions are registered; see the detail",
    "unreachable": "check that its process runs and that the network works in both directions; if"
    " the process has certainly ended, `shardbus node down NODE`",
    "silent": "it is a member and does not answer: see its log and its load",
    "not-up": "a joining member waits for the leader, for convergence or for cluster.min_members; a"
    " leaving one for its shards",
    "not-converged": "a member has not seen the newest membership: see the members named, and"
    " /v1/gossip",
    "other-cluster": "two clusters of one name never merge: stop the nodes of one, and start them"
    " again with seeds of the other",
    "rival-cluster": "one store is for one cluster of a name: stop the nodes of one of the two, or"
    " give it a store.url or a cluster name of its own",
    "no-coordinator": "it runs on the oldest member with the type's coordinator_role, or its role:"
    " check that there is one that is Up, and that its store answers",
    "coordinator-silent": "its node does not answer; the findings about this type come from the"
    " asked node",
    "coordinator-disputed": "the members disagree about the coordinator; see unreachable and"
    " not-converged",
    "not-registered": "its region has no answer from the coordinator: see both nodes' logs",
    "layout": "the members cut this type into different shards: deploy one version",
    "unallocated": "the coordinator gives homes when enough regions have registered"
    " (sharding.min_members), one member is open for shards, and the store answers",
    "starting": "its home has not confirmed that it hosts the shard: see that node's log",
    "moving": "a move waits for the entities' on_stop, at most handoff_timeout; the warnings in the"
    " home's log name entities that do not stop",
    "not-hosted": "the table names that node, which does not host it; the coordinator repairs that"
    " when the region registers again: restart the node if the finding stays",
    "hosted-elsewhere": "it runs on a node that the table does not name: restart that node; its"
    " saves are refused once the home has loaded",
    "hosted-twice": "make one of the nodes leave now; the store refuses the saves of the lower"
    " fence",
    "home-gone": "its home is no member, and the coordinator has not noticed: see its log",
    "waiting": "messages wait there for homes; see the findings about this type",
    "store-silent": "check the server; known homes work meanwhile, new ones and saves do not",
    "replica-silent": "start its process, or see in its node's log why it ended, as by a full disk;"
    " saves go on while a majority serves",
    "replica-behind": "its machine or its links are overloaded, or rows differ and stay so: see"
    " `shardbus store verify`; until it has, a save may be on a bare majority",
    "same-zone": "a fault of that zone takes several replicas: start one in the other zone, take it"
    " in by `shardbus store add`, and take this one out by `shardbus store remove`",
    "members-vote": "after a split the side that stays may be without a store: bring all members to"
    " one version, and run replicas with nodes (docs/downing.md)",
    "value-conflicts": "each put after an old version adds one: put after the version of a new"
    " get, or without `after`; `shardbus values get` shows them",
    "store-unfit": "change the server's settings as the message says",
    "store-errors": "loads or saves of entities have failed there: do what the message says; if no"
    " other member has this finding, check the network between that node and the store",
    "store-behind": "the store has lost a table, or it is another store: check its persistence; the"
    " next coordinator rebuilds the table from the regions",
    "store-ahead": "a coordinator that this node does not know has written: check whether this"
    " cluster is split, or another cluster of its name uses the store",
    "store-differs": "give every node the same store.url",
    "store-not-shared": "such a store is for one machine: use redis:// or postgresql:// for"
    " several",
    "rows-dropped": "the table was edited by hand, or the store is damaged; the shards get new"
    " homes and new rows when they are used, and `shardbus data repair` removes the rows",
    "state-unreadable": "give the class a migration (`bus.migrate`), or mend what is stored;"
    " `shardbus state check` reads all states of the type",
    "deaf-entity": "it takes no message, by a defect of shardbus; the home's log has the failure"
    " before it (`entity_deaf`): restart that node, and report what the log says",
    "strategy-failed": "mend the allocation strategy of the class; meanwhile its shards go to the"
    " regions with the fewest",
    "failing-start": "mend what the error names; it is tried again with a backoff of at most"
    " entity_restart_backoff while messages wait, and with the next message otherwise",
    "failing-handler": "its askers get the error: see the last exceptions on the page, below"
    " Trouble, or in `failures` of /v1/findings",
    "dropped": "see `shardbus dead-letters list`, and docs/reference/metrics.md for the reason",
    "suspended": "it lost contact to what its strategy asks for: mend the network between it and"
    " the members named; its messages wait, and it goes on by itself",
    "late": "a handler blocks its loop: its log names the handler",
    "lagging": "its loop has too much to do, or its machine is overloaded: see `shardbus load` and"
    " /v1/slow; add nodes, or move work into handlers with thread=True",
    "descriptors": "when none is left, connections and files fail: raise the limit, as with"
    " `ulimit -n 65536` or LimitNOFILE= of systemd",
    "saves-waiting": "the store writes more slowly than this node saves, and handlers wait for"
    " their saves: see shardbus_store_latency_seconds and the load of the server",
    "reminders-late": "their handlers fail or take long, or the store does not answer: see"
    " failing-handler, `shardbus reminders list` and shardbus_reminders_failed_total",
    "queue-aside": "mend the worker, then `shardbus queue retry`, or give them up by"
    " `shardbus queue drop`; `shardbus queue show TYPE ID --place aside` has their errors",
    "projection-stopped": "mend the handler of the event, then `shardbus projection retry NAME`; or"
    " pass over it by `shardbus projection skip`: `shardbus projection show NAME` has the errors",
    "projection-behind": "its handlers fail or are slow, or the store does not answer: see"
    " `shardbus projection show NAME`",
    "mailbox-stuck": "its handler fails, its entity does not start, or the store does not answer:"
    " `shardbus mailbox TYPE` has the errors; mend that, then `shardbus mailbox TYPE --retry`, or"
    " give the message up by `shardbus mailbox TYPE ID --skip NUMBER`",
    "poison": "its effect is missing: mend the handler, then send it again; `shardbus dead-letters"
    " list --reason poison` has it if a node or an entity has sent it, else the log of the client"
    " has (`outbox_delivery_given_up`, or the DeliveryFailed that it got)",
    "outbox-stuck": "`shardbus outbox show NAME`: if a process has it open, see the findings about"
    " the receiver's type; else start its client again, which delivers it, or use `shardbus outbox"
    " retry NAME`, or give it up by `shardbus outbox drop NAME`",
    "store-clock": "set the clocks of both machines: the lifetimes of leases follow the store's",
    "protocol": "during an upgrade this is normal; what a member lacks stays off towards it, so"
    " bring all members to one version: docs/upgrading.md",
    "slow-handler": "its messages wait while it runs: let it await less, or use"
    " @handler(thread=True); /v1/slow has the last reports",
    "backlog": "messages arrive faster than they are handled; at the limit senders wait, then tells"
    " are dropped: see slow-handler and saves-waiting, send less, or spread the work over more"
    " entities",
    "hot-shard": "a shard lives on one node, so more nodes do not help: give the type more shards"
    " or ids that spread, or let the strategy `least-load` keep other shards off that node",
    "hot-entity": "an entity lives in one place, so moving its shard does not help: split it into"
    " several ids, make its handler cheaper, or give the type instances",
    "clock": "set the clocks of the machines; leases and tokens do not depend on them, logs do",
    "versions": "during an upgrade this is normal",
    "settings": "give every node the same settings of sections cluster and sharding",
    "stored-outside": "the table has a shard that the type does not have; if the number of shards"
    " was changed, stop the cluster and use `shardbus data remove`",
    "stored-layout": "the table is for other shards than the members declare: declare the stored"
    " ones again, or stop the cluster and use `shardbus data remove`; states are kept",
    "stored-fence-twice": "no two rows may share a fence: the table was edited by hand",
    "stored-fence-ahead": "the fence is of a later epoch than the table: check whether the store"
    " was restored from an old copy; `shardbus data repair` removes such rows",
    "stored-differs": "the coordinator and the store have different homes, and its next writes may"
    " be refused: make its node leave",
    "stored-home-gone": "the home in the store is no member of the running cluster",
    "stored-damaged": "stop the cluster and use `shardbus data repair`, or restore the store from"
    " a copy; `shardbus data repair --dry-run` names everything that is wrong",
    "stored-epoch-high": "no cluster gets that far by itself, and few epochs are left: stop the"
    " cluster and use `shardbus data repair`",
}
"""The advice for each finding."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong with `subject`, which belongs to `of`. `what` completes the sentence
    that starts with the subject."""

    check: str
    of: str
    subject: str
    what: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the key that identifies the finding in two examinations."""
        return self.check, self.of, self.subject

    @property
    def level(self) -> str:
        """Return `fault` or `warning`."""
        return "fault" if self.check in FAULTS else "warning"


class Picture(msgspec.Struct):
    """The pages of one examination. A page that could not be read is empty and in `missing`."""

    ready: Mapping[str, Any] = msgspec.field(default_factory=dict)
    cluster: Mapping[str, Any] = msgspec.field(default_factory=dict)
    nodes: Mapping[str, Any] = msgspec.field(default_factory=dict)
    gossip: Mapping[str, Any] = msgspec.field(default_factory=dict)
    checkup: Mapping[str, Any] = msgspec.field(default_factory=dict)
    slow: Mapping[str, Any] = msgspec.field(default_factory=dict)
    outboxes: Mapping[str, Any] = msgspec.field(default_factory=dict)
    shards: dict[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    inner: set[str] = msgspec.field(default_factory=set)
    """The types that live within another one, and have its table."""

    @property
    def answers(self) -> dict[str, Mapping[str, Any]]:
        """Return the rows of the members that answered, by node."""
        rows = self.checkup.get("members", ())
        return {row["node"]: row for row in rows if row.get("answered")}

    @property
    def members(self) -> list[Mapping[str, Any]]:
        return list(self.nodes.get("nodes", ()))

    def status(self, node: str) -> tuple[str, float]:
        """Return the status of a member, and for how many seconds it has been so. The asked node
        may be none yet."""
        for row in self.members:
            if row.get("node") == node:
                return str(row.get("status")), _age(row, "status_for")
        if node == self.cluster.get("self") and "status_for" in self.cluster:
            return str(self.cluster.get("status")), _age(self.cluster, "status_for")
        return "", LASTING


def _age(row: Mapping[str, Any], name: str) -> float:
    """Return an age of a page; of one that lacks it, as if it had lasted."""
    age = row.get(name)
    return LASTING if age is None else float(age)


def findings(picture: Picture) -> list[Finding]:
    """Return everything that is wrong in this picture."""
    return [
        *(Finding("page", CLUSTER, page, why) for page, why in picture.missing.items()),
        *_membership(picture),
        *_members(picture),
        *_agreement(picture),
        *_store(picture),
        *(finding for kind in _types(picture) for finding in _type(picture, kind)),
    ]


def _types(picture: Picture) -> list[str]:
    named = (row.get("types", {}) for row in picture.answers.values())
    return sorted({*picture.shards, *(kind for types in named for kind in types)})


# -- the cluster ---------------------------------------------------------------------------------


def _membership(picture: Picture) -> Iterator[Finding]:
    yield from _readiness(picture)
    says: dict[str, list[str]] = {}
    for record in picture.gossip.get("unreachable", ()):
        says.setdefault(str(record["subject"]), []).append(f"{record['observer']} {record['is']}")
    for node in picture.cluster.get("unreachable", ()):
        status, age = picture.status(node)
        if status != "exiting" or age >= EXIT_S:
            by = ", ".join(says.get(node, ())) or "its observers are unknown"
            yield Finding("unreachable", MEMBERS, node, f"is unreachable ({by})")
    differs = picture.cluster and not picture.cluster.get("converged")
    if differs and _age(picture.cluster, "converged_for") >= CONVERGE_S:
        missing = ", ".join(picture.gossip.get("waiting_for", ())) or "an unreachable member"
        yield Finding("not-converged", CLUSTER, "membership", f"waits for {missing}")
    for other in picture.cluster.get("other_clusters", ()):
        why = other.get("reason") or f"it is {other.get('node')}, which is no member here"
        yield Finding("other-cluster", CLUSTER, str(other["seed"]), f"is in another one: {why}")
    for member in picture.members:
        status = str(member.get("status", "up"))
        if status != "up" and _age(member, "status_for") >= STATUS_S.get(status, 0.0):
            yield Finding("not-up", MEMBERS, member["node"], f"is {status}")


def _readiness(picture: Picture) -> Iterator[Finding]:
    """Yield why the asked node is not ready, unless that is the beginning or the end of its
    membership, or another finding has it for all members."""
    node = str(picture.cluster.get("self", "the node"))
    young = _age(picture.cluster, "status_for") < JOIN_S
    is_member = any(member.get("node") == node for member in picture.members)
    status = picture.cluster.get("status")
    for name, check in picture.ready.items():
        detail = str(check.get("detail"))
        normal = (young or is_member) and name == "membership" and detail == status
        stops = bool(picture.cluster.get("stopping")) or status in ("leaving", "exiting")
        leaves = name == "membership" and stops
        if not check.get("ok") and not (normal or leaves or name.startswith("coordinator:")):
            yield Finding("not-ready", node, name, f"is not ready: {detail}")


def _members(picture: Picture) -> Iterator[Finding]:
    unreachable = set(picture.cluster.get("unreachable", ()))
    for row in picture.checkup.get("members", ()):
        status, age = picture.status(row["node"])
        changing = status not in ("up", "") and age < STATUS_S.get(status, 0.0)
        if not row.get("answered") and row["node"] not in unreachable and not changing:
            yield Finding("silent", MEMBERS, row["node"], "does not answer")
    clock = picture.checkup.get("time", {})
    for node, row in picture.answers.items():
        if row.get("lag", 0.0) > LATE_S and picture.status(node)[1] >= START_S:
            yield Finding("late", MEMBERS, node, f"has a loop that is {row['lag']:.1f} s late")
        if row.get("suspended"):
            yield Finding("suspended", MEMBERS, node, f"is {row['suspended']}")
        if row.get("rival"):
            yield Finding("rival-cluster", MEMBERS, node, f"reports: {row['rival']}")
        ago = row.get("store_silent_ago")
        if ago is not None and ago < RECENT_S:
            because = str(row.get("store_silent_because") or "it gave no answer")
            what = f"could not use its store {ago:.0f} s ago: {because}"
            yield Finding("store-errors", MEMBERS, node, what)
        there = row.get("time")
        if there is not None and clock:
            off = max(clock["asked"] - there, there - clock["answered"])
            if off > CLOCK_S:
                yield Finding("clock", MEMBERS, node, f"has a clock that is {off:.0f} s off")


def _agreement(picture: Picture) -> Iterator[Finding]:
    answers = picture.answers
    for what, name in (("build", "shardbus"), ("version", "the application")):
        builds = Counter(row.get(what) for row in answers.values())
        if len(builds) > 1:
            usual = builds.most_common(1)[0][0]
            for node, row in answers.items():
                if row.get(what) != usual:
                    text = f"runs {name} {row.get(what)}, most run {usual}"
                    yield Finding("versions", MEMBERS, node, text)
    keys = sorted({key for row in answers.values() for key in row.get("settings", {})})
    for key in keys:
        values = Counter(
            row.get("settings", {}).get(key, "default")
            for row in answers.values()
            if _has_type_of(row, key)
        )
        if len(values) > 1:
            text = ", ".join(f"{value} on {count}" for value, count in values.most_common())
            yield Finding("settings", CLUSTER, key, f"differs: {text}")


def _has_type_of(row: Mapping[str, Any], key: str) -> bool:
    """True unless a setting is one of an entity type that the member does not have: in a rollout,
    or in another application."""
    if not key.startswith(OF_TYPES):
        return True
    return key.removeprefix(OF_TYPES).rpartition(".")[0] in row.get("types", ())


# -- the store, as the nodes see it --------------------------------------------------------------


def _store(picture: Picture) -> Iterator[Finding]:
    rows = [row for row in picture.answers.values() if row.get("store")]
    urls = Counter(row["store"] for row in rows)
    identities = {row.get("store_identity", "") for row in rows}
    if len(urls) > 1 and (len(identities) > 1 or "" in identities):  # one store has many names
        yield Finding("store-differs", STORE, "url", f"is not one: {', '.join(sorted(urls))}")
    hosts = {node.rpartition(":")[0] for node in picture.answers}
    for url in urls:
        if (url.startswith("memory:") and len(picture.answers) > 1) or (
            url.startswith("sqlite:") and len(hosts) > 1
        ):
            what = "is used by members at several addresses"
            if url.startswith("memory:"):
                what = "is another one in each member"
            yield Finding("store-not-shared", STORE, url, what)
    for problem in {p: None for row in picture.answers.values() for p in _problems(row)}:
        name, _, why = problem.removeprefix(NOT_SERVING).partition(": ")
        if problem.startswith(NOT_SERVING):
            yield Finding("replica-silent", STORE, name, f"does not serve: {why}")
        else:
            yield Finding("store-unfit", STORE, "settings", f"have changed: {problem}")
    voters = picture.cluster.get("voters") or {}
    if voters.get("count") == "members" and _age(picture.cluster, "converged_for") >= CONVERGE_S:
        what = f"count members, not replicas: {voters.get('why')}"
        yield Finding("members-vote", STORE, "downing", what)
    yield from _replicas(picture.answers.values())
    yield from _zones(picture)
    yield from _conflicts(picture.answers.values())
    store = picture.checkup.get("store", {})
    if store and not store.get("answers"):
        yield Finding("store-silent", STORE, "answer", f"is missing: {store.get('error')}")
    for kind, table in store.get("tables", {}).items():
        if damage := (table or {}).get("damaged"):
            yield Finding("stored-damaged", kind, "table", str(damage))
            continue
        rules = picture.shards.get(kind, {})
        if rules.get("complete"):
            yield from _epochs(kind, rules["epoch"], (table or {}).get("epoch", 0))
        for row in (table or {}).get("dropped", ()):
            yield Finding("rows-dropped", kind, row.partition(":")[0], f"is no row: {row}")


def _replicas(rows: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    behind: dict[str, float] = {}
    for row in rows:
        behind |= row.get("replicas_behind") or {}
    for address, age in sorted(behind.items()):
        what = f"has not compared all its rows with every other replica for {age:.0f} s"
        yield Finding("replica-behind", STORE, address, what)


def _zones(picture: Picture) -> Iterator[Finding]:
    """Find a replica that shares its zone with another one, while nodes are in a zone without
    any."""
    zones = {str(row.get("zone", "")) for row in picture.members}
    for row in picture.answers.values():
        members: Mapping[str, str] = row.get("replica_zones") or {}
        if not members:
            continue
        from shardbus.replication.ring import zones_left  # most nodes have another store

        left = zones_left(list(members.values()), zones)
        shared = Counter(members.values())
        if left:
            address = max(members, key=lambda each: (shared[members[each]], each))
            zone = members[address] or "no zone"
            what = f"is in {zone}, as another replica, and none is in {', '.join(left)}"
            yield Finding("same-zone", STORE, address, what)
            return


def _conflicts(rows: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    most: dict[str, int] = {}
    for row in rows:
        for key, count in (row.get("value_conflicts") or {}).items():
            most[key] = max(count, most.get(key, 0))
    for key, count in sorted(most.items()):
        yield Finding("value-conflicts", STORE, key, f"has {count} values put at the same time")


def _problems(row: Mapping[str, Any]) -> list[str]:
    return [str(problem) for problem in row.get("store_problems") or ()]


def _epochs(kind: str, ruling: int, stored: int) -> Iterator[Finding]:
    text = f"is {stored} in the store, {ruling} in the cluster"
    if stored < ruling:
        yield Finding("store-behind", kind, "epoch", text)
    elif stored > ruling:
        yield Finding("store-ahead", kind, "epoch", text)


# -- one entity type -----------------------------------------------------------------------------


def _type(picture: Picture, kind: str) -> Iterator[Finding]:
    answers = picture.answers.items()
    rows = {node: types[kind] for node, row in answers if kind in (types := row.get("types", {}))}
    for row in rows.values():
        for entity_id, why in (row.get("unreadable") or {}).items():
            yield Finding("state-unreadable", kind, entity_id, f"does not start: {why}")
        for entity_id in row.get("deaf") or ():
            yield Finding("deaf-entity", kind, entity_id, "is busy, and nothing of it runs")
        for method, what in row.get("strategy") or ():
            yield Finding("strategy-failed", kind, method, what)
    coordination = list(_coordination(picture, kind, rows))
    lacks = any(finding.check == "no-coordinator" for finding in coordination)
    yield from coordination
    if len(layouts := _layouts(picture, kind)) > 1:
        yield Finding("layout", kind, "layout", f"is {' and '.join(sorted(layouts))}")
    for node, row in rows.items():
        if not _is_settled(picture, node, row):
            continue
        if not row.get("registered") and not lacks:
            yield Finding("not-registered", kind, node, "is not registered with the coordinator")
        if row.get("buffered") and _age(row, "buffered_for") >= WAIT_S:
            what = f"has {counted(row['buffered'], 'message')} without a home"
            yield Finding("waiting", kind, node, what)
    yield from _homes(picture, kind, rows)


def _is_settled(picture: Picture, node: str, row: Mapping[str, Any]) -> bool:
    """True if a member has been up for long enough to have a coordinator, and expects it where it
    did before."""
    status, age = picture.status(node)
    settled = age >= COORDINATOR_S and _age(row, "coordinator_for") >= COORDINATOR_S
    return settled and status in ("up", "")


def _coordination(
    picture: Picture, kind: str, rows: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    """Yield the faults of a type's coordinator. There are none before a member is up, and while
    members change to another coordinator."""
    me = str(picture.cluster.get("self", ""))
    settled = {node: row for node, row in rows.items() if _is_settled(picture, node, row)}
    coordinators = {row.get("coordinator") for row in rows.values() if row.get("coordinator")}
    disputed = {row.get("coordinator") for row in settled.values() if row.get("coordinator")}
    lacks = not coordinators and kind not in picture.cluster.get("coordinators", {})
    if lacks and settled:
        yield Finding("no-coordinator", kind, "coordinator", "is missing")
    elif len(disputed) > 1:
        names = ", ".join(sorted(str(node) for node in disputed))
        yield Finding("coordinator-disputed", kind, "coordinator", f"is disputed: {names}")
    elif (
        coordinators
        and not picture.shards.get(kind, {}).get("complete", True)
        and (me not in rows or me in settled)
    ):
        yield Finding("coordinator-silent", kind, "coordinator", "does not answer")


def _layouts(picture: Picture | None, kind: str) -> set[str]:
    """Return the layouts that the members have declared for a type."""
    answers = picture.answers.values() if picture is not None else ()
    rows = [row.get("types", {}).get(kind, {}) for row in answers]
    return {str(row["layout"]) for row in rows if row.get("layout")}


def _homes(picture: Picture, kind: str, rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    hosted: dict[str, list[str]] = {}
    for node, row in rows.items():
        for shard in row.get("shards", {}):
            hosted.setdefault(shard, []).append(node)
    for shard, nodes in hosted.items():
        if len(nodes) > 1:
            yield Finding("hosted-twice", kind, shard, f"runs on {' and '.join(sorted(nodes))}")
    page = picture.shards.get(kind, {})
    if not page.get("complete"):
        return
    members = {member["node"] for member in picture.members}
    states = {"unallocated": "unallocated", "starting": "starting", "handing_off": "moving"}
    homes = {row["shard"]: row for row in page.get("shards", ())}
    for shard, row in homes.items():
        home, state = row.get("node"), row.get("state")
        if state in states:
            if _age(row, "age") >= MOVE_S:
                yield Finding(states[state], kind, shard, f"is {state.replace('_', ' ')}")
        elif members and home not in members:
            yield Finding("home-gone", kind, shard, f"lives on {home}")
        elif home in rows and home not in hosted.get(shard, ()):
            yield Finding("not-hosted", kind, shard, f"should run on {home}")
    for shard, nodes in hosted.items():
        row = homes.get(shard, {})
        for node in nodes:
            if node != row.get("node") and row.get("state") not in states:
                where = row.get("node") or "nowhere"
                yield Finding("hosted-elsewhere", kind, shard, f"runs on {node}, lives on {where}")


# -- a table as the store has it -----------------------------------------------------------------


def stored(kind: str, table: StoredTable | None, picture: Picture | None) -> Iterator[Finding]:
    """Yield the faults of a stored table, by itself and compared with the running cluster."""
    from shardbus.sharding.intents import split_intents

    page = picture.shards.get(kind, {}) if picture is not None else {}
    ruling = page.get("epoch", 0) if page.get("complete") else None
    if ruling is not None:
        yield from _epochs(kind, ruling, table.epoch if table is not None else 0)
    if table is None:
        return
    if table.epoch > EPOCH_HIGH:
        yield Finding("stored-epoch-high", kind, "epoch", f"is {table.epoch} in the store")
    for layout in sorted(_layouts(picture, kind) - {table.layout}):
        what = f"is {table.layout} in the store, {layout} in the cluster"
        yield Finding("stored-layout", kind, "layout", what)
    for text in table.dropped:
        yield Finding("rows-dropped", kind, text.partition(":")[0], f"is no row: {text}")
    function, _, count = table.layout.rpartition("/")
    homes, _ = split_intents(table.homes)
    fences = Counter(fence for _, fence in homes.values())
    members = {member["node"] for member in picture.members} if picture is not None else set()
    rows = {row["shard"]: row for row in page.get("shards", ())} if page.get("complete") else {}
    for shard, (node, fence) in homes.items():
        inside = shard.isascii() and shard.isdigit() and count.isdigit() and int(shard) < int(count)
        if function == "crc32" and not inside:
            yield Finding("stored-outside", kind, shard, f"is none of {table.layout}")
        if fences[fence] > 1:
            yield Finding("stored-fence-twice", kind, shard, f"has the fence {fence} of another")
        if fence >> EPOCH_SHIFT > table.epoch:
            what = f"has a fence of epoch {fence >> EPOCH_SHIFT}, the table is of {table.epoch}"
            yield Finding("stored-fence-ahead", kind, shard, what)
        if members and str(node) not in members:
            yield Finding("stored-home-gone", kind, shard, f"is stored as living on {node}")
        row = rows.get(shard, {})
        said = row.get("node"), row.get("fence")
        if row.get("state") == "running" and said != (str(node), fence):
            what = f"lives on {said[0]} under {said[1]}, stored is {node} under {fence}"
            yield Finding("stored-differs", kind, shard, what)
