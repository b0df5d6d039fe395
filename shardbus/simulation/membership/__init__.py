"""Simulated membership: `world` is the shell around the machines, `run` plays one seed, `options`
and `faults` draw the faults, `checks` has the invariants, `network` and `leases` can fail."""
