"""An agent of brokerd in Python that works through what its role is sent, until nothing has come for a second.

usage: worker.py HOST:PORT CREDENTIAL-FILE
"""
import json
import pathlib
import sys

import grpc
from google.protobuf import duration_pb2

from brokerd.v1 import agent_pb2, agent_pb2_grpc, message_pb2, message_pb2_grpc


def build(payload):
    """The work itself."""
    task = json.loads(payload)
    if task["name"] == "impossible":
        raise RuntimeError("no such repository")
    return task["name"] + " is built"


def main(address, credential_file):
    credential = pathlib.Path(credential_file).read_text().strip()
    me = [("authorization", "Bearer " + credential), ("brokerd-agent", "py-worker")]

    with grpc.insecure_channel(address) as channel:  # loopback only: see docs/security.md
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        messages = message_pb2_grpc.MessageServiceStub(channel)
        agents.RegisterAgent(
            agent_pb2.RegisterAgentRequest(role="builder", capabilities=["python"]), metadata=me)

        take = message_pb2.ClaimMessagesRequest(
            wait=duration_pb2.Duration(seconds=1), claim_for=duration_pb2.Duration(seconds=1800))
        while claims := messages.ClaimMessages(take, metadata=me).claims:  # what it held when it was killed comes first
            claim = claims[0]
            try:
                result = build(claim.message.payload)
            except Exception as error:
                failed = message_pb2.Nack(claim_id=claim.claim_id, error=str(error))
                messages.NackMessages(message_pb2.NackMessagesRequest(nacks=[failed]), metadata=me)
                continue
            # Answers and finishes the task in one transaction: either both are done or neither.
            messages.Reply(message_pb2.ReplyRequest(
                id=claim.claim_id, ack=True, message=message_pb2.Message(type="task_result", subject=result)), metadata=me)
            print(result)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
