"""One shell per pure machine, named after it: `region`, `coordinator`, `singleton`, `leases`. It
feeds events to its machine and carries out the effects. `cluster_thread` runs membership.
"""
