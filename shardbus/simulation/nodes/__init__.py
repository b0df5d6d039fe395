"""Simulated nodes and clients: `world` runs production code in virtual time, `application` sends
and receives, `checker` judges each message, `faults`, `network` and `stores` bring failures."""
