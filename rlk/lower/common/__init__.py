"""Code that all lowerings share: axis roles, peeled loops, names, templates."""

from __future__ import annotations
