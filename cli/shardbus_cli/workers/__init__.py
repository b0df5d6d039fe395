"""All cores of a machine: `node start --workers N` runs N nodes as one unit.

A node handles messages on one core, so a machine needs one node per core, and its operator one
process to start, query and stop. That process is the **supervisor**, which hosts nothing; its child
processes, the **workers**, are ordinary nodes.

                        ┌──────────────────── supervisor ─────────────────────┐
     SIGTERM, SIGINT ──>│ worker_group: stages, restarts, end of the unit     │──> exit code
     one HTTP port  <──>│ http_front: /readyz, /metrics of all; rest of one   │──> `ready:` line
                        └───┬──────────────────┬──────────────────┬───────────┘
                     socket │ and two pipes    │                  │
                        worker 0           worker 1           worker 2        real nodes
                        7355, 7356         7357, 7358         7359, 7360      ROUTER, PUB
                        HTTP 8559          8560               8561

Start. Worker 0 starts first, alone. So an error that concerns all workers (a setting, the
application, the store) is reported once, and the unit ends with that node's exit code. Once worker
0 serves, the others start together. Without seeds worker 0 forms the cluster and the others join
it. The unit is ready when all of its workers are; it then writes the `ready:` line and to
`--ready-fd`, and notifies systemd.

Run. A worker that ends is restarted after 0.5 s; the pause doubles with each end, up to 30 s, and
is 0.5 s again for a worker that was ready for a minute. The seeds of a restarted worker include the
other workers, so that it does not form another cluster. A worker that reports that it leaves, and
ends with 0, left by order and is not restarted. A worker that cannot start at all (exit codes 2 and
3) ends the unit. The code of a worker that was ready never does: a handler may have chosen it.

Leave. All workers leave, so no shard should move from one to another. First the supervisor closes
each worker: the worker is cordoned, and reports when the whole cluster has seen that. Then the
supervisor sends all of them `leave` at the same time, and each leaves as any node does. The unit
ends with its last worker, with the highest of their exit codes. A worker that exceeds its own
deadline by a margin is killed, which counts as exit code 7.

Each worker holds a socket to the supervisor. If that closes, the worker leaves the cluster as after
SIGTERM (`shardbus.node.supervisor_link`).

    plan             ports, seeds and arguments of each worker; pure
    worker_group     the stages of the workers: starts, restarts, the end; pure
    http_front       the unit's HTTP
    exposition       metrics of all workers as one page; pure
    unit             the workers as the HTTP and the supervisor use them

`shardbus_cli.children` starts and follows the processes.

Source: docs/reference/cli.md; docs/how-to/operate.md; B.139.
"""
