"""The loop of rounds, and the policies that set its steps."""
