"""Flights as entities: one per aircraft, which keeps the log of what it flew."""

from examples.flights.app import Aircraft, Flight, FlightLog, bus

__all__ = ["Aircraft", "Flight", "FlightLog", "bus"]
