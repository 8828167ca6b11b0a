"""Answers over HTTP, and a page to look at, while the model learns."""
