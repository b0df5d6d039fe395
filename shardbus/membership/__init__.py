"""Cluster membership as pure state machines. `cluster` is the machine; the others are its parts.

    gossip              the state: members, reachability, tombstones, epochs, a vector clock. Any
                        two copies merge, in any order, to the same value
    exchange            one round each second with one partner, three while fewer than half of the
                        members have seen the version; `gossip_targets` chooses them
    joining, admission  the two sides of a join: seeds, InitAck with its cookie, Join; the greetings
                        that both compare; `join_contacts` has the seeds and their answers
    trials              before a node is a member, messages and gossip must go both ways between it
                        and its seed, and a member beyond that seed
    founding            who may found a cluster: the first of fixed seeds, or any node with contacts
                        that are discovered (`registrations`), and only with the store's claim
                        (`claim_record`)
    leader              the first reachable Up or Leaving member in address order; it moves members
                        through their lives, on versions that every member has seen
    failure/            heartbeats in a hashed ring, phi accrual, proofs of death. One observer
                        marks a node unreachable; all of its observers must clear it
    downing/            the graph of working links, the view of a split from here, which side stays,
                        and when to decide
    singleton/          places one instance on the oldest node
    commands            of an operator or the application: leave, down, removal by force, stop
    view, diagnostics   the view for the other parts of the node, and the view for people
    known_types         which entity types a member has, in its features

docs/protocols.md has the phases and the lives.
"""
