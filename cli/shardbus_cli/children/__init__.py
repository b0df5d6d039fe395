"""One supervisor of child processes, for `shardbus dev` and `node start --workers`.

    signals, source files ──┐
                            v
    child processes ──> events ──> a machine ──> effects ──> start, command, kill, print
                                   dev.cluster
                                   workers.worker_group

The two commands differ in the machine that decides (`ChildGroup`), in how a child is started
(`ChildKind`), and in their lines about an effect.

    group            events, effects, and the protocol of the machines; pure
    process          one process, with its socket and pipes
    prefixed_output  the output of the children, each line with its child's number
    supervisor       the loop that carries out the effects

The supervisor hosts nothing and loads no application. No module here imports the library, whose
import would take processor time from the children.
"""
