"""Passes over tile IR, one per file; `pipeline` has their order."""
