"""Measures schedules of contractions on the device that is there, and proposes entries of their tables."""
