"""What the documentation of an operator says: its page, written from its spec and tried out by tests."""
