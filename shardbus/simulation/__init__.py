"""The simulator: `membership/` runs the membership machines alone, `nodes/` runs whole nodes. Each
has a world, options, faults, checks and the run of a seed. `timeline` is virtual time,
`virtual_loop` runs asyncio on it, `trace` records the events."""
