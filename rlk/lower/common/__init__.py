"""What every lowering needs and no backend owns: axis roles, loops in two parts, names, templates."""

from __future__ import annotations
