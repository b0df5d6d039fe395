"""One shell per pure machine, named after it: `region`, `coordinator`, `singleton`, `leases`. A shell
feeds events to its machine and carries out the effects. `cluster_thread` runs membership.
"""
