"""The application of `benchmarks.counters` on a node that takes no sample of latencies."""

from __future__ import annotations

from benchmarks.counters import bus as bus  # work of a node
from shardbus.shells import load_sampling
from shardbus.transport import sent_messages

load_sampling.LATENCIES_S = sent_messages.SAMPLES_S = 0
