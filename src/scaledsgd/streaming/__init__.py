"""Learning while events arrive."""
