"""A builder: works on the messages to its role and replies, until SIGTERM.

BROKERD_AGENT=py-builder python worker.py
"""

from brokerd import Client, Reject


def build(claim):
    """Does the work. The returned text is the reply, and an exception is a failed attempt."""
    name = claim.payload["name"]
    if name == "impossible":
        raise Reject("no such repository")
    return f"{name} is built"


with Client.from_env() as client:
    client.register(role="builder", capabilities=["python"])
    client.work(build, concurrency=4)
