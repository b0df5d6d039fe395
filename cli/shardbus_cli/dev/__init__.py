"""A cluster on the developer's machine, in one terminal: `shardbus dev`.

    shardbus dev (this process)                      hosts nothing, loads no application
      │  keyboard, signals ──> DevCluster ──> start, stop, restart, reload
      │  source files ─────────┘   │
      │                            socket and two pipes to each node
      ├── node 1    7355  7356   HTTP 8558           founds the cluster
      ├── node 2    7365  7366   HTTP 8568           real nodes, each a process
      └── node 3    7375  7376   HTTP 8578

The state of entities and the tables of shards are in a SQLite file in the folder `.shardbus` of the
current directory. It survives reloads and the end of `dev`; `--fresh` removes it first.

Start. All processes start at once and import the library, which takes most of the time. The first
one then loads the application; the others follow when it has succeeded, so that an error of the
application is printed once.

Reload. When a source file changes, new processes start beside the running nodes and load the
changed application. If that fails, the running nodes stay. Otherwise they stop, as a whole
cluster: each entity ends with `on_stop` and nothing moves. Then the new processes become the
nodes, at the same ports and with the same store.

End. Ctrl-C stops the nodes in the same way; a second one kills them. If this process ends without
that, even by SIGKILL, the socket to each node closes. A node then has 3 s to end; after that it
kills its own process group, and so every process that the application started in it.

    cluster         the life of the nodes: a pure state machine
    layout          addresses, folder and settings of the nodes
    node_main       the program of a node's process
    source_files    notices changes of source files
    guide           the printed guide: addresses, next commands
    runner          settings of the nodes, and the lines about them
    command         the options

`shardbus_cli.children` starts and follows the processes.

Source: docs/how-to/develop.md; docs/reference/cli.md.
"""
