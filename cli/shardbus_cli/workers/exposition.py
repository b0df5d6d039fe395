"""Merge the metrics of several workers into one page: each sample gets a label `worker`. Pure.

A page in Prometheus's text format is a list of families: `# HELP`, `# TYPE` and samples. A page may
name a family only once, so the samples of all workers follow the head of the first worker.

Source: docs/reference/metrics.md; B.55.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

HELP, TYPE = "# HELP ", "# TYPE "


def merged(pages: Mapping[int, str]) -> str:
    """Return one page with the samples of all workers."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, page in sorted(pages.items()):
        for family, line in _by_family(page):
            if line.startswith("#"):
                head = heads.setdefault(family, [])
                if line not in head:
                    head.append(line)
            else:
                samples.setdefault(family, []).append(_labelled(line, worker))
    lines = [line for family in heads for line in (*heads[family], *samples.get(family, ()))]
    return "".join(f"{line}\n" for line in lines)


def _by_family(page: str) -> Iterable[tuple[str, str]]:
    family = ""
    for line in page.splitlines():
        if line.startswith((HELP, TYPE)):
            family = line.split(" ", 3)[2]
        if line:
            yield family, line


def _labelled(sample: str, worker: int) -> str:
    """Return the sample with the label `worker` in front of its others."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{worker="{worker}"{"," if not rest.startswith("}") else ""}{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'
