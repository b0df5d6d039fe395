"""What operators see and change: `pages` are the pages behind HTTP, `answers` has what nodes answer
each other, `shard_control` passes orders to coordinators, `metrics` renders Prometheus text.
"""
