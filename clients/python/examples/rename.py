"""Renames a module while it holds the lock on the files.

BROKERD_AGENT=py-renamer python rename.py
"""

from brokerd import Client


def rename():
    print("renaming")


client = Client.from_env()
client.register(role="builder")
with client.locks.hold(["src/", "go.mod"], wait=60, reason="rename the module") as hold:
    rename()
    hold.check()
    hold.client.state.put("module", "example.com/new")
client.close()
