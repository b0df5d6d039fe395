"""A store inside the cluster: registers on several disks that agree by majority.

    messages    ballots, rows, and the requests and answers between a store object and a replica
    values      the values of rows: states, tables, lists, leases; and changes of them
    registers   the rows of one disk, and its answer to each request
    log         the frames and segments of a disk's log
    founding    how blank disks become one store
    proposer    the requests of one store object: load, save, read, settle, change

Nothing here has a clock, a socket or a disk: a driver passes `now` in, sends the effects that the
machines return, and syncs rows before their answers leave.
"""
