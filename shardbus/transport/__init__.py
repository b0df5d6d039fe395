"""Sessions between processes: in order, without loss or duplicates while both live.

Start with `session`, `window` (acknowledgements) and `inbox`. `endpoint` has the connections:
`outgoing` opens and reopens them, `incoming` accepts them. `permissions` decides which messages
each kind of peer may send, `asks` gives each ask one outcome.

**Sockets.** Endpoints and links handle frames, not sockets. They travel by the protocols of
`network`, which `zmq/` and the simulator implement.

**Names.** ZeroMQ gets numeric addresses only: it would look names up in the thread that carries all
connections. A name is looked up in a thread of its own, at most eight at once (`name_lookups`,
`name_resolver`), and again whenever its connection breaks; `destination` chooses among its
addresses. Probes wait a quarter of a second for a newer answer and then use the last one.

docs/protocols.md has links step by step.
"""
