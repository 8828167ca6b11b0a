"""Choices and ratings as comparisons, search and evaluation."""
