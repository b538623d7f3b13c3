"""The constants of Philox 4x32-10 (Salmon et al., SC 2011), of every implementation here."""

from __future__ import annotations

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)

DEFINITION = {"rounds": ROUNDS, "multipliers": MULTIPLIERS, "weyl": WEYL}
