"""Rewrites of the tile IR, each in a file of its own; `pipeline` says in which order they run."""
