"""Runs that show what the package does, and the pages they end in."""
