"""The paper's objects: losses, observations, factors, their linear algebra, and the reference."""
