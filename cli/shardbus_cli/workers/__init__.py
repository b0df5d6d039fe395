"""All cores of a machine: `node start --workers N` runs N nodes as one unit.

A node handles messages on one core. A machine with several wants a node for each, and whoever runs
the machine wants one thing to start, to ask and to stop. So the process that is started becomes a
**supervisor**, which hosts nothing, and its children, the **workers**, are nodes like any other.

                        ┌──────────────────── supervisor ─────────────────────┐
     SIGTERM, SIGINT ──>│ crew: who runs, rests, is ready; when all of it ends │──> exit code
     one HTTP port  <──>│ front: /readyz of all, /metrics of all, the rest of one │──> `ready:` line
                        └───┬──────────────────┬──────────────────┬───────────┘
                     socket │ and two pipes    │                  │
                        worker 0           worker 1           worker 2        real nodes
                        7355, 7356         7357, 7358         7359, 7360      ROUTER, PUB
                        HTTP 8559          8560               8561

Start. Worker 0 goes first, alone: what is wrong for all of them (a setting, the application, the
store) is said once, and ends the unit with the exit code that the node had. Once it serves, the
others start together. Without seeds it founds the cluster at once and the others join it. The unit
is ready when all of its workers are, and says so with one line, `--ready-fd` and systemd's READY.

Run. A worker that dies is started again: soon at first, then after twice as long each time, up to
30 s; who was ready for a minute begins anew. It has the other workers among its seeds, so a worker
that founded the cluster once does not found another. One that ends with 0 was told to leave, and
stays away. One that cannot start for good (exit codes 2 and 3) ends the unit.

Leave. The whole machine goes, so no shard shall move from worker to worker. First each worker is
told to close: it is cordoned, and says when the whole cluster knows. Then all are told to leave at
the same time, and each goes as a node goes. The unit ends when the last has, with the highest of
their exit codes. Whoever is late is killed when the worker's own deadline and a margin have passed,
which counts as exit code 7.

Neither side outlives the other in silence. Each worker holds a socket to the supervisor; if that
ends, the worker leaves the cluster as at a SIGTERM (`shardbus.node.supervisor_link`).

    plan             ports, seeds and arguments of each worker; pure
    worker_group     what to do when one ends, serves, is ready, or all shall go; pure
    process          one worker's process, its socket and pipes
    prefixed_output  what workers print, line by line, with their number
    http_front       the unit's HTTP
    exposition       metrics of all workers as one page; pure
    supervisor  the loop that carries the crew's orders out

Source: docs/reference/cli.md; docs/how-to/operate.md; B.139, C.34.
"""
