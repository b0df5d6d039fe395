"""Messages that arrive at least once and take effect once, as pure machines.

    numbers    the number of a delivery, and the answers to it, as they travel
    record     what an entity keeps of its producers: done, repeated, gap
    producer   what a producer keeps: window, order, repetition, poison

Source: docs/how-to/deliver.md.
"""
