"""The contract of a whole model, checked by running it: `rlk verify`."""
