"""Accounts kept in a database of the application's own."""

from examples.accounts.app import bus

__all__ = ["bus"]
