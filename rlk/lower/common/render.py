"""Rendering of templates: strict, from one frozen dataclass, without computation in templates."""

from __future__ import annotations

from functools import cache

import jinja2

from rlk.resources import templates


@cache
def _environment(backend: str) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates() / backend),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def render(backend: str, name: str, subject: object) -> str:
    """Return the text of a template whose one variable, `m`, is the subject."""
    return _environment(backend).get_template(name).render(m=subject)
