"""How a node finds failed members: `phi_accrual` rates a silence, `heartbeat` watches a ring of
neighbours, `local_health` rates the observer itself, `confirmed_death` proves a process gone."""
