"""Documentation pages of operators, written from their specs and tried by tests."""
