"""One instance in the cluster, on the oldest node: `singleton` is the state machine, `predecessors`
tracks which older nodes may still run an instance, `messages` has the hand-over messages."""
