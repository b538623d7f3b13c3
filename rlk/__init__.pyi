# written by rlk gen
"""The names that `import rlk` offers."""

from rlk import lang as lang
from rlk import nn as nn
from rlk import ops as ops
from rlk import sync as sync
from rlk.integrations.patching import patch as patch
from rlk.ops.layout import Layout as Layout
from rlk.runtime.prefetch import explain as explain
from rlk.runtime.prefetch import prefetch as prefetch
from rlk.runtime.registry import register as register

__version__: str
