"""Writes `docs/reference/logs.md` from the declarations in `shardbus/log_events.py`.

python docs/make_logs.py
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from shardbus.log_events import EVENTS
from shardbus.membership.view import DomainEvent
from shardbus.node.downing_log import QUIET
from shardbus.node.event_log import ALARMING, NOTEWORTHY, event_name

PAGE = Path(__file__).parent / "reference" / "logs.md"

INTRO = """\
# Logs

Made by `docs/make_logs.py` from the declarations; do not edit.

A node logs to standard error: for people on a terminal, JSON lines otherwise (`--log-format`).
The few lines of the command itself, as "shardbus: left the cluster", are text in both forms, and
begin so.
If the application configures `logging` when it is imported, its handlers get the node's lines, too.
`logging.config.dictConfig` switches off all loggers that exist, unless it has
`"disable_existing_loggers": False`; the node's command switches those of shardbus on again.
The library itself only uses the loggers `shardbus.*` of Python and configures nothing, so an
application that embeds it decides.

- [Fields](#fields)
- [Limits](#limits)
- [Events](#events)
- [Membership](#membership)
- [Notes](#notes)

## Fields

Keys of a JSON line. The form for people has `field=value` behind the text, for fields that the text
does not have, without `event`, `node` and `epoch`.

| field | meaning |
|---|---|
| `time`, `level`, `logger`, `message` | of each line |
| `event` | the stable name of what happened; the text may change |
| `node` | address of the node |
| `entity_type`, `entity_id`, `shard`, `fence` | of lines about a type, an entity or a shard, \
and of all that the application logs in a handler or in a task that a handler waits for; \
not in other threads |
| `epoch` | of notes of regions and coordinators: the highest epoch seen; of `epoch_claimed` \
the one that was claimed |
| `trace_id`, `span_id` | of what a traced handler logs, with [tracing](../how-to/trace.md) |
| `exception` | a traceback |

An event has the fields of its row below. Fields that an application adds with `extra=` are keys,
too.

## Limits

Of one text at most 100 lines appear in 10 s, of what strangers can cause at most 10; the next
line says how many were left out. Writing never holds up a node: lines wait in a queue for a
thread that writes them, 10,000 and 4 MiB at most. While the reader stands still further lines are
dropped, and once it goes on, `log_lines_dropped` says how many. A process that ends waits a
second for its reader. The same holds for each plain `StreamHandler` to standard output or standard
error that your application has set up when it is loaded; a file, or a handler of another class,
is written as it is.
"""

MEMBERSHIP = """\
What happens in the cluster, as this node sees it. `member` is the node that it concerns.

| event | meaning |
|---|---|"""


def render() -> str:
    """The whole page."""
    parts = [INTRO, "## Events\n\n| event | logged by | text | fields |\n|---|---|---|---|"]
    for (module, text), event in sorted(EVENTS.items(), key=lambda row: (row[1].name, row[0])):
        names = ", ".join(f"`{name}`" for name in event.fields if name != "-")
        parts.append(
            f"| `{event.name}` | `{module}` | {text.replace('|', chr(92) + '|')} | {names} |"
        )
    parts += ["", "## Membership", "", MEMBERSHIP]
    for event in sorted(get_args(DomainEvent), key=event_name):
        meaning = " ".join((event.__doc__ or "").split())
        meaning = meaning.replace("`seconds`", "some seconds").partition(": ")[0].rstrip(".")
        level = "; at level debug" if event in QUIET else ""
        parts.append(f"| `{event_name(event)}` | {meaning}{level} |")
    parts += ["", "## Notes", "", "Notes of regions and coordinators are events, too: `event` is"]
    parts += ["their kind, and `/metrics` counts them. At level warning:"]
    parts += [", ".join(f"`{kind}`" for kind in sorted(ALARMING)) + ". At level info:"]
    parts += [", ".join(f"`{kind}`" for kind in sorted(NOTEWORTHY - ALARMING)) + "."]
    return "\n".join([*parts, "All others are at level debug.", ""])


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
