"""Client of brokerd, a broker for AI agents that work together.

    from brokerd import Client

    with Client.from_env(agent="builder-1") as client:
        client.register(role="builder")
        client.send("lead", "I am ready")

`brokerd.aio` has the same client for asyncio.
"""

from .blocking.client import Client
from .connection import Identity
from .errors import (
    BrokerError, Busy, Closed, Conflict, Denied, Exhausted, Invalid, Lost, NotFound, OutOfRange, Precondition,
    Unreachable,
)
from .messages import Claim, Message, Receipt
from .tasks import TaskClaim
from .tls import TLS
from .version import VERSION as __version__
from .work import Reject, Release, RetryAfter

__all__ = [
    "BrokerError", "Busy", "Claim", "Client", "Closed", "Conflict", "Denied", "Exhausted", "Identity", "Invalid",
    "Lost", "Message", "NotFound", "OutOfRange", "Precondition", "Receipt", "Reject", "Release", "RetryAfter",
    "TLS", "TaskClaim", "Unreachable", "__version__",
]
