"""Messages that arrive at least once and take effect once, as pure machines.

    numbers    the number of a delivery, and the answers to it, as they travel
    record     an entity's record of its producers: done, repeated, gap
    producer   a producer's unconfirmed deliveries: window, order, repetition, poison

Source: docs/how-to/deliver.md.
"""
