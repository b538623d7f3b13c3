"""Generated source, run as a module while a compiler reads it."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def executed(source: str, file: str) -> Iterator[types.ModuleType]:
    """Run generated source as a module of this file name, under which inspect finds the text meanwhile."""
    lines = source.splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)
    module = types.ModuleType("rlk_generated")
    module.__file__ = file
    sys.modules[module.__name__] = module
    try:
        # not with this module's own future imports: they would turn annotations into strings
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
        yield module
    finally:
        sys.modules.pop(module.__name__, None)
        linecache.cache.pop(file, None)
