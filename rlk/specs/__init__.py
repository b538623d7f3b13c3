"""The operators, each written once."""
