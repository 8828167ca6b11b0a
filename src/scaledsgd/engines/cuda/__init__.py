"""A GPU."""
