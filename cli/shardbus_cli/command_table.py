"""The commands of `shardbus`: where each one is, and its line in the help.

The parser of command lines needs ten times as long to start as Python itself, and most commands
import libraries of their own. So a command is imported when it is called, by its place in this
table, and the help of `shardbus` is printed from the table without any parser.

The help of each command comes from `help.json`, which `docs/make_help.py` writes with the parser; a
test compares the two. The file gains nine tenths of the processor time of a page: 0.02 s for `node
start --help`, where the parser takes 0.2 s (0.15 s are wanted, docs/measurements.md). It costs a
generated file and 12 lines here.

At its start this module imports nothing.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Develop": {
        "init": ("init:init", "Make a project: an entity, a test, a web route, a compose file."),
        "dev": ("dev.command:dev", "Run a cluster on this machine, in one terminal."),
        "check": ("config:check", "Check application, settings and store; start nothing."),
        "simulate": ("simulate:simulate", "Run simulated clusters under seeded faults."),
        "bench": ("bench:bench", "Measure tells, asks and starts of entities on this machine."),
    },
    "Run": {
        "node": ("node:app", "Start a node, or remove one from the cluster."),
        "cluster": ("show:cluster_app", "The cluster as a whole."),
        "config": ("config:app", "The settings of a node."),
        "store": ("store:app", "The replicas of a store inside the cluster."),
        "keys": ("keys:app", "The secret of a cluster, and keys for its processes."),
    },
    "Send": {
        "ask": ("send:ask", "Send a message and print the answer as JSON."),
        "tell": ("send:tell", "Send a message; return when a node has acknowledged it."),
    },
    "Look": {
        "top": ("top:top", "Watch states, load, errors and latencies of nodes and types."),
        "nodes": ("show:nodes", "List the members and the shards and entities of each."),
        "types": ("show:types", "List the entity types of the cluster."),
        "shards": ("show:shards", "List the shards of a type and where they live."),
        "partitions": ("show:partitions", "List the nodes of the instances of each shard."),
        "entities": ("show:entities", "List the entities in memory, one page at a time."),
        "where": ("show:where", "Show the shard and the home of an entity."),
        "explain": ("show:explain", "Explain why an entity or a shard is on its node."),
        "load": ("show:load", "Show how busy the nodes are, and the busiest shards."),
        "health": ("show:health", "Show whether a node is ready for work."),
        "events": ("events:events", "Print what has happened; with --follow what happens."),
        "doctor": ("doctor:doctor", "Report what is wrong with the cluster and what to do."),
        "report": ("report:report", "Write one file with all that helps to find a fault."),
        "version": ("commands:version", "Print the version."),
    },
    "Operate": {
        "cordon": ("maintenance:cordon", "Keep new shards away from a node."),
        "uncordon": ("maintenance:uncordon", "Let a node take shards again."),
        "drain": ("maintenance:drain", "Move all shards off a node, which stays a member."),
        "shutdown-region": (
            "maintenance:shutdown_region",
            "Move a type's shards off a node.",
        ),
        "plan": ("placement:plan", "Predict which shards would move."),
        "rebalance": ("placement:rebalance", "Check the balance now; pause or bound moves."),
        "place": ("placement:place", "Set where shards must live, and show it."),
        "stop": ("placement:stop", "Stop shards until their next message."),
        "limit": ("limits:limit", "Show or set the limit of a type's entities in memory."),
        "dead-letters": ("dead_letters:app", "Messages that were dropped; send them again."),
        "reminders": ("reminders:app", "What entities are called for later."),
        "outbox": ("outbox:app", "Messages that clients have left to deliver."),
        "mailbox": ("mailbox:mailbox", "Messages of durable mailboxes that are not handled."),
        "queue": ("work_queue:app", "Items of a queue of work, and those that were set aside."),
        "data": ("data:app", "The stored tables of shards."),
        "state": ("state:app", "The stored states of entities."),
        "values": ("values:app", "The replicated values of the cluster."),
        "journal": ("journal:app", "The events of event-sourced entities."),
        "projection": ("projection:app", "Read sides of events: progress, failures, anew."),
    },
}
"""Section, command, and its place as `module:attribute` within `shardbus_cli`, with a summary."""

COMMANDS = {name: place for rows in SECTIONS.values() for name, (place, _) in rows.items()}
"""Every command with its place."""

HEAD = """\
Usage: shardbus [OPTIONS] COMMAND [ARGS]...

  Stateful entities, sharded over a cluster of Python processes.

Options:
  --version                     Print the version.
  --cacert FILE                 PEM file with the certificates to trust in HTTPS to a node.
                                [env: SHARDBUS_NODE_CACERT]
  --debug                       Show tracebacks; may stand anywhere.
  --install-completion [SHELL]  Complete command lines in bash, zsh or fish: by default in this
                                shell.
  --show-completion [SHELL]     Print the script that does so.
  -h, --help                    Show this message and exit.
"""
FOOT = """\
`shardbus COMMAND --help` shows the options of a command. Begin with `shardbus dev --demo`, or with
`shardbus init DIR`.
"""


def help_of_all() -> str:
    """Return the help of `shardbus`."""
    width = max(map(len, COMMANDS)) + 2
    parts = [HEAD]
    for section, rows in SECTIONS.items():
        lines = (f"  {name:<{width}}{line}\n" for name, (_, line) in rows.items())
        parts.append(f"{section}:\n{''.join(lines)}")
    return "\n".join([*parts, FOOT])


def pages() -> dict[str, str]:
    """Return the help of each command, by its words."""
    import json
    from pathlib import Path

    text = Path(__file__).with_name("help.json").read_text(encoding="utf-8")
    texts: dict[str, str] = json.loads(text)["pages"]
    return texts


def help_of(arguments: list[str]) -> str | None:
    """Return the page for `COMMAND... --help`; None if anything else stands before the option."""
    return pages().get(" ".join(arguments[:-1]))


def named_in(arguments: list[str]) -> str:
    """Return the command that the arguments name; an empty text if there is none, or an unknown
    one."""
    left = list(arguments)
    while left and left[0].startswith("-"):
        if left.pop(0) == "--cacert" and left:
            left.pop(0)
    return left[0] if left and left[0] in COMMANDS else ""
