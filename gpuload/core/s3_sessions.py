"""botocore's sessions, made quick: its service models are read once a process, and its times by the standard library.

A client costs 70 ms, nearly all of it JSON of the services' models, and 5 ms where they are shared; a listing of a
thousand objects spends two thirds of its time in dateutil (0.13 ms an object). Owns that, and nothing that answers
depend on: the session is what s3fs would have made.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

_models: dict[Any, Any] = {}
"""By where the user keeps models of his own."""


def quicken(system: Any) -> None:
    """Give an S3FileSystem that has no session yet the one that it would make. Anything else stays as it is."""
    if not hasattr(system, "_call_s3") or getattr(system, "session", "") is not None:
        return
    from aiobotocore.session import AioSession
    from botocore.utils import parse_timestamp

    def parsed(value: Any) -> datetime:
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00"))
        except (AttributeError, ValueError):
            return parse_timestamp(value)

    try:
        session = AioSession(**system.kwargs)
        place = session.get_config_variable("data_path")
    except Exception:  # s3fs meets it where it opens the session, and says it as its users know it
        return
    session.register_component("data_loader", _models.setdefault(place, session.get_component("data_loader")))
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=parsed)
    system.session = session
