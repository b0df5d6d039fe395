"""Real nodes and a real store under faults that a seed draws, judged by a ledger.

Five nodes with a cluster's secret, each on a machine of its own (a network namespace), share a
store: a Redis with a replica and three Sentinels, a Redis Cluster, a PostgreSQL, or replicas of
their own. Two clients
send numbered messages to every page, and each page writes down the messages that it handles.
Senders add to accounts, whose states are saved. Meanwhile, one
after the other, the faults of `tests.chaos.steps` happen. After each of them the store must become
whole and the nodes must agree; a node that had to end starts again. In the end every page must
answer. The rules are in

    tests.chaos.verdict      pages, asks, nodes that end by themselves
    tests.chaos.saving       acknowledged saves
    tests.chaos.resources    descriptors, threads, memory and tasks of each node

A machine that may not make namespaces or mount disks runs the other faults. The verdict has the
reason, and does not call such a run complete.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGSTOP

from shardbus import AsyncClient, RequestError
from shardbus.ids import Address
from shardbus.transport.secret_file import new_secret, secrets_text, write_private
from shardbus.transport.zmq.curve import Keyring
from tests.chaos.resources import Sample, exceeded, peaks, use_of, waited_ns
from tests.chaos.saving import Gap, Savers, judge
from tests.chaos.steps import PLACES, Kind, Passing, Step, steps
from tests.chaos.store import DOWN_AFTER_MS, Site
from tests.chaos.stores import SENTINEL, STORES
from tests.chaos.verdict import (
    Verdict,
    ended_by_itself,
    judge_asks,
    judge_pages,
    tracebacks,
)
from tests.ports import free_block
from tests.process.namespaces import Machine, Network
from tests.process.nodes import MACHINE_PORTS, NodeProcess, Processes
from tests.process.test_ledger import ASK, PAGES, TELL, Ledger, Load, Producer
from tests.process.warm import ROOT
from tests.waiting import until

ASK_TIMEOUT_S = 20.0
ROUND_S = 0.5
SAMPLE_S = 2.0
STARVED = 0.5
"""A node that waits for a core for this part of the time between two samples is starved."""
STARVED_LATELY_S = 60.0
TOKEN = "sesame-opens-the-door"
APP = "tests.chaos.app:bus"
COMMAND = "from shardbus_cli.main import main; main()"


class SteadyProducer(Producer):
    """A producer that goes on when a message is refused. `longest` is its longest wait for the
    answer to an ask."""

    longest = 0.0

    async def run(self) -> None:
        from tests.process.app import Page

        refs = [self.client.ref(Page, f"page-{i}") for i in range(PAGES)]
        while not self.closing:
            self.rounds += 1
            for page, ref in enumerate(refs):
                if self.number == ASK:
                    task = asyncio.ensure_future(self._timed(page, ref, self.rounds))
                    self._asks.add(task)
                    task.add_done_callback(self._asks.discard)
                    continue
                try:
                    await ref.hit.tell(TELL, self.rounds)
                except RequestError:
                    self.outcomes[page, self.rounds] = "refused"
            await asyncio.sleep(ROUND_S)
        await asyncio.gather(*self._asks)

    async def _timed(self, page: int, ref: object, seq: int) -> None:
        begun = time.monotonic()
        await self._ask(page, ref, seq)  # type: ignore[arg-type]
        self.longest = max(self.longest, time.monotonic() - begun)


class Chaos:
    """One run. `network` has a machine for each place and one for the store, if there can be."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        seconds: float,
        network: Network | None = None,
        why: str = "",
        store: str = SENTINEL,
    ) -> None:
        self._folder, self._seconds, self._network = folder, seconds, network
        self._seed, self._kind_of_store = seed, store
        self.verdict = Verdict(seed)
        self._began = time.monotonic()
        self._machines: list[Machine | None] = [None] * PLACES
        self._safe: Machine | None = None
        if network is not None:
            self._machines = [network.machine() for _ in range(PLACES)]
            self._safe, self._spare = network.machine(), network.machine()
        else:
            self.verdict.impossible.append(why)
        self._secret = folder / "cluster.secret"
        write_private(self._secret, secrets_text([new_secret()]))
        self._nodes: dict[int, NodeProcess] = {}
        """The last node of each place."""
        self._addresses: dict[int, Address] = {}
        """Of the node of each place."""
        self._faulted: set[str] = set()
        """Names of nodes that a fault may have silenced since all nodes agreed."""
        self._gaps: list[Gap] = []
        self._samples: dict[str, list[Sample]] = defaultdict(list)
        self._waited: dict[str, int] = {}
        self._starved_at = float("-inf")

    def _note(self, what: str) -> None:
        line = f"{time.monotonic() - self._began:7.1f}  {what}"
        self.verdict.timeline.append(line)
        print(line, flush=True)

    async def run(self) -> Verdict:
        """Run, heal and judge."""
        self._store = STORES[self._kind_of_store](self._site())
        self.verdict.kinds = self._store.kinds
        self._lab = Processes(self._folder, self._store.url)
        try:
            await self._store.begin()
            await asyncio.gather(*map(self._start, range(PLACES)))
            await self._agree()
            async with self._client() as a, self._client() as b, self._client() as c:
                await self._load_and_faults(a, b, c)
            await self._end()
        except BaseException:
            self._keep()
            raise
        finally:
            self._lab.close()
            self._store.close()
        if self.verdict.wrong:
            self._keep()
        return self.verdict

    def _site(self) -> Site:
        """Return the places of the run, and choose the ports of its nodes."""
        safe = self._safe
        for place, machine in enumerate(self._machines):
            host = machine.address if machine else "127.0.0.1"
            port = MACHINE_PORTS[0] if machine else free_block(4)
            self._addresses[place] = Address(host, port)
        return Site(
            self._folder / "store",
            safe.address if safe else "127.0.0.1",
            safe.enter if safe else (),
            tuple(self._addresses.values()),
            tuple(machine.enter if machine else () for machine in self._machines),
            self._secret,
        )

    def _keep(self) -> None:
        (self._folder / "logs").write_text(self._lab.logs())
        print(self._lab.logs(), file=sys.stderr)

    def _client(self) -> AsyncClient:
        addresses = [f"tcp://{node.address}" for node in self._lab.live]
        return AsyncClient(*addresses, cluster="lab", timeout=ASK_TIMEOUT_S, secret=self._secret)

    async def _load_and_faults(self, a: AsyncClient, b: AsyncClient, c: AsyncClient) -> None:
        load, self._savers = Load(), Savers(c)
        load.producers = [SteadyProducer(a, TELL), SteadyProducer(b, ASK)]
        load.work = [asyncio.ensure_future(p.run()) for p in load.producers]
        await load.rounds(3)
        self._savers.begin()
        watch = asyncio.ensure_future(self._watch())
        try:
            end = time.monotonic() + self._seconds
            for step in steps(self._seed, without=self._without()):
                if time.monotonic() >= end:
                    break
                await self._do(step)
                await asyncio.sleep(step.quiet_s)
            self._note("heal")
            await self._agree()
            await load.rounds(5)
            await self._saves_proceed()
            await self._savers.end()
            await load.end()
            await self._all_answer()
            for node in self._lab.live:
                await until(node.accounts, f"the account of the messages of {node.name}")
        finally:
            watch.cancel()
            for task in load.work:
                task.cancel()
        self._judge(load)

    def _without(self) -> frozenset[Kind]:
        kinds = set(frozenset(Kind) - self._store.kinds)
        kinds |= set() if self._network else {Kind.SPLIT, Kind.LINKS}
        if self._store.no_disks:
            self.verdict.impossible.append(self._store.no_disks)
            kinds.add(Kind.DISK)
        return frozenset(kinds)

    # ---- nodes

    async def _start(self, place: int) -> NodeProcess:
        """Start a node at a place; again, if it meets a cluster that is about to end."""
        settings = ("http.write=true", f"http.token={TOKEN}", f"security.secret={self._secret}")
        machine = self._spare if place == PLACES and self._network else None
        if place < PLACES:
            machine = self._machines[place]
        while True:
            address = self._addresses.get(place)
            running = [n.address for p, n in self._nodes.items() if n.running and p != place]
            node = self._lab.begin(
                port=address.port if address else 0,
                seeds=[*self._store.seeds] or running[:3],
                machine=machine,
                settings=(*settings, "security.insecure=false", *self._store.settings(place)),
                app=APP,
            )
            self._nodes[place] = node
            await until(
                lambda node=node: not node.running or "ready: " in node.out.read_text(),
                f"the start of {node.name}",
            )
            if node.running:
                self._note(f"{node.name} joins at place {place}")
                return node
            error = node.err.read_text(errors="replace")
            if "Traceback" in error:
                self.verdict.wrong.append(f"{node.name} failed at its start with a traceback")
            self._note(f"{node.name} did not start: {error.strip().splitlines()[-1:]}")
            await asyncio.sleep(1.0)

    async def _return_ended(self) -> None:
        """Replace nodes that have ended by themselves, all of them at once: they may wait for each
        other."""
        ended = [place for place in range(PLACES) if not self._nodes[place].running]
        for place in ended:
            node = self._nodes[place]
            lately = time.monotonic() - self._starved_at < STARVED_LATELY_S
            wrong, note = ended_by_itself(
                node.name,
                node.process.returncode,
                node.err.read_text(errors="replace"),
                faulted=node.name in self._faulted,
                starved=lately,
            )
            self._note(note or wrong)
            if wrong:
                self.verdict.wrong.append(wrong)
        await asyncio.gather(*map(self._start, ended))

    async def _agree(self) -> None:
        """Wait until there is a node at every place, and all see these and no other. Faults are
        over then."""
        await self._in_agreement()
        self._faulted.clear()

    async def _in_agreement(self) -> None:

        async def whole() -> bool:
            await self._return_ended()
            nodes = [self._nodes[place] for place in range(PLACES)]
            pages = await asyncio.gather(*(node.page("/v1/nodes") for node in nodes))
            statuses = {node.address: "up" for node in nodes}
            return all(
                page and {row["address"]: row["status"] for row in page["nodes"]} == statuses
                for page in pages
            )

        await until(whole, f"agreement of {PLACES} nodes")

    async def _all_answer(self) -> None:
        from tests.process.app import Page

        async with self._client() as client:
            refs = [client.ref(Page, f"page-{i}") for i in range(PAGES)]
            await asyncio.gather(*(ref.where() for ref in refs))
        self._note("all pages answer")

    async def _saves_proceed(self) -> None:
        before = self._savers.answered

        def more() -> bool:
            return all(count >= before[name] + 3 for name, count in self._savers.answered.items())

        await until(more, "saves of every account")

    # ---- faults

    async def _do(self, step: Step) -> None:
        """Do one step, and wait until everything is well again."""
        self.verdict.done[step.kind] += 1
        leader, begun = await self._store.leader(), time.monotonic()
        match step.kind:
            case Kind.KILL | Kind.PAUSE | Kind.LEAVE | Kind.JOIN | Kind.WIPE:
                await self._fault_of_a_node(step)
            case Kind.SPLIT:
                await self._split(step)
            case Kind.LINKS:
                await self._lose_links(step)
            case Kind.ROTATE:
                await self._rotate(step)
            case Kind.FAILOVER:
                await self._failover()
            case _:
                await self._store.suffer(step, self._note)
        await asyncio.gather(self._store.whole(), self._in_agreement())
        if step.kind != Kind.FAILOVER and await self._store.leader() != leader:
            self._note("the store has failed over")
            if self._store.may_lose:
                self._gaps.append(Gap(begun - DOWN_AFTER_MS / 1000, time.monotonic()))
        await self._agree()
        self._note("all nodes agree")

    async def _fault_of_a_node(self, step: Step) -> None:
        node = self._nodes[step.place]
        match step.kind:
            case Kind.KILL:
                self._note(f"kill {node.name}")
                node.kill()
                await self._start(step.place)
            case Kind.WIPE:
                self._note(f"kill {node.name} and wipe the disk of its replica")
                node.kill()
                await asyncio.to_thread(self._store.wipe, step.place)
                await self._start(step.place)
            case Kind.LEAVE:
                self._note(f"leave {node.name}")
                code = await node.terminate()
                if code not in (0, 7):
                    self.verdict.wrong.append(f"{node.name} left with {code}")
                await self._start(step.place)
            case Kind.PAUSE:
                self._note(f"pause {node.name} for {step.seconds:g} s")
                self._faulted.add(node.name)
                node.signal(SIGSTOP)
                await asyncio.sleep(step.seconds)
                node.signal(SIGCONT)
            case _:
                guest = await self._start(PLACES)
                await asyncio.sleep(step.quiet_s)
                self._note(f"leave {guest.name}, the guest")
                code = await guest.terminate()
                del self._nodes[PLACES]
                if code not in (0, 7):
                    self.verdict.wrong.append(f"{guest.name}, the guest, left with {code}")

    async def _split(self, step: Step) -> None:
        assert self._network is not None
        few = [m for p, m in enumerate(self._machines) if p in step.few and m]
        many = [m for p, m in enumerate(self._machines) if p not in step.few and m]
        names = [self._nodes[place].name for place in step.few]
        self._note(
            f"split {', '.join(names)} from the others for {step.seconds:g} s; passes: "
            f"{step.passing}; the store is reached by {step.reached_by}"
        )
        self._faulted.update(node.name for node in self._nodes.values())
        if self._safe is not None and step.reached_by != "both":
            (few if step.reached_by == "few" else many).append(self._safe)
        match step.passing:
            case Passing.NOTHING:
                self._network.split(few, many)
            case Passing.FROM_FEW:
                self._network.stop(many, few)
            case Passing.FROM_MANY:
                self._network.stop(few, many)
        await asyncio.sleep(step.seconds)
        self._network.heal()
        self._note("heal the network")

    async def _lose_links(self, step: Step) -> None:
        assert self._network is not None
        node, machine = self._nodes[step.place], self._machines[step.place]
        assert machine is not None
        self._note(
            f"lose the connections that {node.name} {' and '.join(step.ways)}, on its ports of"
            f" {' and '.join(step.ports)}, for {step.seconds:g} s"
        )
        self._faulted.update(node.name for node in self._nodes.values())
        others = [n for place, n in self._nodes.items() if place != step.place]
        if "dials" in step.ways:
            self._network.lose(machine, *_ports(others, step))
        if "takes" in step.ways:
            self._network.lose(machine, *_ports([node], step), dialled=False, taken=True)
        await asyncio.sleep(step.seconds)
        self._network.heal()
        self._note("heal the links")

    async def _rotate(self, step: Step) -> None:
        how = "signals" if step.by_signal else "command"
        self._note(f"rotate the secret, by {how}")
        await self._command("keys", "rotate", str(self._secret))
        await self._reload(step)
        await asyncio.sleep(step.quiet_s)
        await self._command("keys", "rotate", "--finish", str(self._secret))
        await self._reload(step)

    async def _reload(self, step: Step) -> None:
        """Have every node read the file."""
        keys = Keyring(self._secret).keys
        if not step.by_signal:

            async def reloaded() -> bool:
                code, text = await self._command("keys", "reload", "--json", place=step.place)
                if code:
                    return False
                rows = json.loads(text)["nodes"]
                fingerprints = [key.fingerprint for key in keys]
                return len(rows) == PLACES and all(row["keys"] == fingerprints for row in rows)

            await until(reloaded, "the secret at every node")
            return
        nodes = [self._nodes[place] for place in range(PLACES)]
        said = f"under secret {keys[0].fingerprint}"
        counts = {n.name: n.err.read_text(errors="replace").count(said) for n in nodes}
        for node in nodes:
            node.signal(SIGHUP)

        def read() -> bool:
            return all(
                not n.running or n.err.read_text(errors="replace").count(said) > counts[n.name]
                for n in nodes
            )

        await until(read, "the secret in the logs of all nodes")

    async def _command(self, *words: str, place: int = 0) -> tuple[int, str]:
        """Run a command of the operator at a place; return its exit code and output."""
        node = self._nodes[place]
        env = {k: v for k, v in os.environ.items() if not k.startswith("SHARDBUS_")}
        env |= {
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "cli"))),
            "SHARDBUS_NODE_TOKEN": TOKEN,
            "SHARDBUS_NODE_URL": f"http://127.0.0.1:{node.http_port}",
        }
        enter = node.machine.enter if node.machine else ()
        done = await asyncio.to_thread(
            subprocess.run,
            [*enter, sys.executable, "-c", COMMAND, *words],
            env=env,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            self._note(f"{' '.join(words[:2])} ended with {done.returncode}: {done.stderr.strip()}")
        return done.returncode, done.stdout

    async def _failover(self) -> None:
        """Fail over while nothing saves: no acknowledged save may be lost."""
        self._note("fail the store over, while saves rest")
        await self._savers.rest()
        try:
            await self._store.fail_over()
            await self._store.whole()
        finally:
            self._savers.resume()

    # ---- judging

    async def _watch(self) -> None:
        """Take samples of all nodes that run."""
        while True:
            for node in self._lab.live:
                pid = node.process.pid
                use = use_of(pid, self._folder)
                if use is None:
                    continue
                self._samples[node.name].append(Sample(time.monotonic() - self._began, use))
                waited = waited_ns(pid)
                if waited - self._waited.get(node.name, waited) > STARVED * SAMPLE_S * 1e9:
                    self._starved_at = time.monotonic()
                self._waited[node.name] = waited
            await asyncio.sleep(SAMPLE_S)

    def _judge(self, load: Load) -> None:
        ledger, (tells, asks), verdict = Ledger(self._folder), load.producers, self.verdict
        verdict.wrong += judge_pages(ledger)
        verdict.wrong += judge_asks(ledger, asks.outcomes)
        for name, samples in self._samples.items():
            verdict.wrong += [f"{name}: {what}" for what in exceeded(samples)]
        logs = ((node.name, node.err.read_text(errors="replace")) for node in self._lab.all)
        verdict.wrong += tracebacks(logs)
        peak = peaks([sample for samples in self._samples.values() for sample in samples])
        outcomes = Counter(asks.outcomes.values())
        saves = self._savers.accounts.values()
        assert isinstance(asks, SteadyProducer)
        verdict.facts = {
            "tells handled": ledger.total(TELL),
            "of": tells.rounds * PAGES,
            **{f"asks {outcome}": count for outcome, count in sorted(outcomes.items())},
            "longest ask s": round(asks.longest, 1),
            "saves answered": sum(len(sender.answers) for sender in saves),
            "saves in doubt": sum(sender.doubts for sender in saves),
            "failovers that may lose saves": len(self._gaps),
            **{f"most {name}": value for name, value in peak._asdict().items()},
        }

    async def _end(self) -> None:
        """Have all nodes leave, at once as replicas wait for each other, and read the store."""
        accounts, stored = self._savers.accounts, dict[str, int]()
        if self._store.ends_with_nodes:
            stored = await self._store.totals(list(accounts))
        nodes = self._lab.live
        codes = await asyncio.gather(*(node.terminate() for node in nodes))
        for node, code in zip(nodes, codes, strict=True):
            if code not in (0, 7):
                self.verdict.wrong.append(f"{node.name} left at the end with {code}")
        if not self._store.ends_with_nodes:
            stored = await self._store.totals(list(accounts))
        broken = judge(accounts, stored, self._gaps)
        self.verdict.wrong += broken
        self._note(f"saves judged: {len(broken)} wrong")


def _ports(nodes: list[NodeProcess], step: Step) -> list[int]:
    """Return the ports of these nodes on which links are lost."""
    ports = [node.port for node in nodes] if "messages" in step.ports else []
    return ports + [node.gossip_port for node in nodes if "gossip" in step.ports]
