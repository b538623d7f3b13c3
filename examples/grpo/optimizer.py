"""torch's AdamW on f32 copies of a 16-bit model's weights."""

from __future__ import annotations

from typing import Any

import torch


class MasterAdamW:
    """AdamW over f32 weights, whose rounded values are the model's. rate: falls to 0 over `steps` steps."""

    def __init__(self, model: torch.nn.Module, rate: float, steps: int) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.weights = [p.detach().float().clone() for p in self.parameters]
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight)
        self.adam = torch.optim.AdamW(self.weights, lr=rate, weight_decay=0.0)
        self.rates = torch.optim.lr_scheduler.LambdaLR(self.adam, lambda n: max(0.0, 1 - n / steps))

    def accumulate(self) -> None:
        """Add the gradient of a forward pass onto that of the step, in f32."""
        for weight, parameter in zip(self.weights, self.parameters, strict=True):
            if parameter.grad is not None:
                weight.grad.add_(parameter.grad)  # type: ignore[union-attr]
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights, and round them into the model."""
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.adam.step()
        self.adam.zero_grad(set_to_none=False)
        self.rates.step()
        self._round()

    def state(self) -> dict[str, Any]:
        """Return everything that later steps depend on."""
        return {"weights": self.weights, "adam": self.adam.state_dict(), "rates": self.rates.state_dict()}

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        for weight, found in zip(self.weights, state["weights"], strict=True):
            weight.copy_(found)
        self.adam.load_state_dict(state["adam"])
        self.rates.load_state_dict(state["rates"])
        self._round()

    def _round(self) -> None:
        for weight, parameter in zip(self.weights, self.parameters, strict=True):
            parameter.copy_(weight)
