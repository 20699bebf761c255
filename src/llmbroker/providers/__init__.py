"""Providers: one file a dialect, pure functions in one fixed order; every vendor is a row of a table with its quirks beside it.

Rooms above import what they need from ``table`` (who is known) and ``base`` (what a dialect and a provider are).
"""
