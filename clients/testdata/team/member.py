"""A member of the team in Python: works on messages and tasks until SIGTERM. BROKERD_AGENT is its name."""

import asyncio

from brokerd import aio


async def main():
    async def finish(claim):
        return None

    async with aio.Client.from_env() as client:
        await client.register(role="worker")
        await asyncio.gather(client.work(finish, consumer="member"), client.tasks.work(finish))


asyncio.run(main())
