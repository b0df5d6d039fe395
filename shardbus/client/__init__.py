"""Producers outside of the cluster: `asynchronous` and `blocking` are the clients, `contact` is the
node they ask, `regions` has the entity types in use, `thread_bridge` connects threads to the loop.
"""
