"""A team member in asyncio: does tasks under a lock, and answers its mail at the same time, until SIGTERM.

BROKERD_AGENT=py-member python member.py
"""

import asyncio

from brokerd import Lost, aio


async def main():
    async with aio.Client.from_env() as client:
        await client.register(role="coder", lease=60)

        async def answer(claim):
            return f"I am {client.identity.agent}, and I have finished {len(finished)} tasks"

        async def code(claim):
            try:
                async with client.locks.hold("src/", reason=claim.title) as hold:
                    await client.tasks.update(claim, progress=0.5, note="src/ is locked")
                    await hold.client.state.put(f"results/{claim.id}", {"title": claim.title})
            except Lost:
                raise RuntimeError("src/ was lost: try again")
            finished.append(claim.id)
            return f"{claim.title} is done"

        finished = []
        await asyncio.gather(client.work(answer, stop=stop), client.tasks.work(code, stop=stop))


stop = asyncio.Event()
asyncio.run(main())
