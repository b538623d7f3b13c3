"""The oracle: a CPU interpreter of tile IR that defines the bits of every kernel."""
