"""Warnings on threads of ours, where one that is an error (`python -W error`) would be raised in nobody's face.

Owns that such a warning is told all the same: raised there, it would end the thread, or take the place of what the
thread was about to hand over.
"""

from __future__ import annotations

import logging
import warnings


def warn_on_a_thread(message: str, *, stacklevel: int) -> None:
    """warnings.warn; where that raises, the message is logged instead (logger "gpuload"). stacklevel: the caller's."""
    try:
        warnings.warn(message, stacklevel=stacklevel + 1)
    except Warning:
        logging.getLogger("gpuload").warning("%s", message)
