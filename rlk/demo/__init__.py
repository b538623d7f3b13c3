"""`rlk demo`: one GRPO step from logits on real text, measured against oracle, float64 and plain torch."""
