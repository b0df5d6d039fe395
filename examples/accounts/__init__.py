"""Accounts in the application's own database."""

from examples.accounts.app import bus

__all__ = ["bus"]
