"""Specs of the shipped operators, each written once for all backends."""
