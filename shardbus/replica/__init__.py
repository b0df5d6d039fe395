"""The process of a replica: its disk, its socket, its life."""
