"""What is solved, and how fast."""
