"""Laws that a user-defined loss must obey, checked on a drawn batch."""

from __future__ import annotations

from collections.abc import Collection

from rlk.ops.losses import Loss, form_of
from rlk.specs.policy import policy_spec
from rlk.specs.records import policy_batch
from rlk.target.facts import target
from rlk.testing.check import Law, Verdict, check
from rlk.testing.examples import Example

LAWS = (Law.TEXT, Law.SLOPE, Law.TILES, Law.SOURCE)


def check_loss(loss: Loss, laws: Collection[Law] = LAWS) -> tuple[Verdict, ...]:
    """Return the verdict of each law: slopes against differences, tilings, the bits of generated source.

    Slopes are those of the loss without its metrics. Weights and estimates without a gradient, such as
    cispo's or k3+, fail the law of slopes: by differences they have one.
    """
    form, numbers = form_of(loss, False)
    example = Example(lambda rng: policy_batch(rng, tokens=1300) | numbers)
    return tuple(check(policy_spec(form), example, (target("sm_90a"),), laws))
