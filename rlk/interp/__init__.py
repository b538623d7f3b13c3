"""The oracle: what every kernel must compute, bit for bit."""
