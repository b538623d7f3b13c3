"""The tile IR: the portable meaning of an operator, and nothing of any machine."""
