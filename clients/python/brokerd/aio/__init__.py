"""The client for asyncio: the same operations as coroutines, on grpc.aio.

    async with aio.Client.from_env(agent="builder-1") as client:
        await client.register(role="builder")
        async for message in client.follow():
            ...

A client belongs to the event loop of its first call. Cancelling a task cancels its call.
"""

from .client import Client

__all__ = ["Client"]
