"""One node of a cluster. Start with `node`, which composes the parts, `run` (the process) and
`shutdown` with its `shutdown_phases`. `dispatch` passes on arrivals, `rpc` queries other nodes,
`ticker` runs periodic tasks.
"""
