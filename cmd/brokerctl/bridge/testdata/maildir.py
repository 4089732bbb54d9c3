# Functions of an agent of the format maildir that only has Python.
import json
import os
import pathlib
import uuid
from datetime import datetime, timezone


class MAOSCommunicator:
    def __init__(self):
        self.me = os.environ["MAOS_AGENT_ID"]
        self.mail = pathlib.Path(os.environ["MAOS_MESSAGE_DIR"])
        self.shared = pathlib.Path(os.environ["MAOS_SHARED_CONTEXT"])

    def send_message(self, to, kind, subject, body, **fields):
        now = datetime.now(timezone.utc).isoformat()
        fields.update(id=f"m-{uuid.uuid4()}", timestamp=now, to=to, type=kind, subject=subject, body=body)
        fields["from"] = self.me
        outbox = self.mail / "outbox" / self.me
        outbox.mkdir(parents=True, exist_ok=True)
        new = outbox / ".new"
        new.write_text(json.dumps(fields))
        new.rename(outbox / f"{now}.json")
        return fields["id"]

    def read_messages(self, kind=None):
        files = sorted((self.mail / "inbox" / self.me).glob("*.json"))
        found = [json.loads(file.read_text()) for file in files]
        return [m for m in found if kind in (None, m["type"])]

    def share_artifact(self, category, name, content):
        path = self.shared / category / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        self.send_message("all", "announcement", f"{name} is shared", str(path))
        return path

    def broadcast_to_role(self, role, kind, subject, body, **fields):
        return self.send_message(f"all_{role}", kind, subject, body, **fields)

    def request_from_role(self, role, subject, body, **fields):
        return self.broadcast_to_role(role, "request", subject, body, requires_response=True, **fields)

    def get_agents_by_role(self):
        roles = {}
        for m in self.read_messages():
            parts = m["from"].split("_")
            if parts[0] == "agent":
                roles[parts[1]] = roles.get(parts[1], 0) + 1
        return roles
