"""Simulated membership: `world` is the shell around the machines, `run` plays one seed, `options`
and `faults` draw what goes wrong, `checks` has the invariants, `network` and `leases` can fail."""
