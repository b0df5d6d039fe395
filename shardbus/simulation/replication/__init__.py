"""Disks and store objects of `replication` in virtual time, under seeded faults.

world             the network, disks that lose, tear, fill, stall and die, and store objects
histories         random calls on one key, and the meaning of each for the others
linearizability   the judge of a history
run               one seed, from its first call to its verdict
"""
