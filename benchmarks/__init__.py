"""Benchmarks that are run by hand. Nothing here is installed, and no test depends on it."""
