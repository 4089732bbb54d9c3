"""Conversions between Python and protobuf."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any, Iterable, List, Optional, Union

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from .errors import Invalid

#: A time span: seconds, or a timedelta.
Seconds = Union[float, timedelta]

#: A time: a datetime, or seconds from now.
Time = Union[datetime, float, timedelta]


def seconds(span: Seconds) -> float:
    if isinstance(span, timedelta):
        return span.total_seconds()
    if isinstance(span, (int, float)):
        return float(span)
    raise Invalid(f"{span!r} is no time span: give a number of seconds, or a timedelta")


def duration(span: Optional[Seconds]) -> Optional[Duration]:
    if span is None:
        return None
    nanos = round(seconds(span) * 1e9)
    return Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)


def span(value: Duration) -> float:
    """Returns the seconds of a duration."""
    return float(value.seconds + value.nanos / 1e9)


def timestamp(when: Optional[Time]) -> Optional[Timestamp]:
    if when is None:
        return None
    if not isinstance(when, datetime):
        when = datetime.now(timezone.utc) + timedelta(seconds=seconds(when))
    value = Timestamp()
    value.FromDatetime(when.astimezone(timezone.utc))
    return value


def moment(value: Timestamp) -> datetime:
    return value.ToDatetime().replace(tzinfo=timezone.utc)


def encode(value: Any) -> str:
    """Returns the JSON of a value; nothing for None."""
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def decode(text: str) -> Any:
    """Returns the value of a JSON text; None for an empty one."""
    return json.loads(text) if text else None


def listed(names: Union[str, Iterable[str]]) -> List[str]:
    """Returns a list of names; a single name stands for itself."""
    return [names] if isinstance(names, str) else list(names)


def enum(kind: Any, name: str) -> Any:
    """Returns the value of an enum such as TaskState by its short name, such as ready; empty = unspecified."""
    values = dict(kind.items())
    prefix = next(iter(values)).rpartition("UNSPECIFIED")[0]
    try:
        return values[prefix + (name.upper() or "UNSPECIFIED")]
    except KeyError:
        known = [value[len(prefix):].lower() for value in values if not value.endswith("_UNSPECIFIED")]
        raise Invalid(f"{name!r} is none of {', '.join(known)}") from None


def name(kind: Any, value: int) -> str:
    """Returns the short name of the value of an enum."""
    prefix = kind.Name(0).rpartition("UNSPECIFIED")[0]
    return str(kind.Name(value)[len(prefix):].lower())
