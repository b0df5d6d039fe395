"""Flights: one entity per aircraft, which keeps the log of its flights."""

from examples.flights.app import Aircraft, Flight, FlightLog, bus

__all__ = ["Aircraft", "Flight", "FlightLog", "bus"]
