"""The machines in a world of their own: virtual time, one seed, faults, and what must hold."""
