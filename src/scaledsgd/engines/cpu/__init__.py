"""CPU threads."""
