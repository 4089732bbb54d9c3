"""An agent of brokerd in Python: registers, sends, claims, acknowledges.

usage: agent.py ADDRESS [CREDENTIAL-FILE]     an ADDRESS is unix:///PATH, or HOST:PORT with a credential
"""
import json
import pathlib
import sys

import grpc
from google.protobuf import duration_pb2

from brokerd.v1 import agent_pb2, agent_pb2_grpc, message_pb2, message_pb2_grpc


def main(address, credential_file=None):
    credential = []
    if credential_file:  # over TCP; on the Unix socket the broker knows the user
        credential = [("authorization", "Bearer " + pathlib.Path(credential_file).read_text().strip())]

    def identity(agent):
        """Who calls: metadata of every call, never part of a request."""
        return [("brokerd-agent", agent)] + credential

    with grpc.insecure_channel(address) as channel:
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        messages = message_pb2_grpc.MessageServiceStub(channel)
        for name, role in (("py-lead", "lead"), ("py-builder", "builder")):
            agents.RegisterAgent(agent_pb2.RegisterAgentRequest(role=role), metadata=identity(name))

        task = message_pb2.Message(
            target=message_pb2.Target(agent="py-builder"),
            type="task_assignment",
            subject="Add login",
            payload=json.dumps({"task_id": "t1"}),
        )
        sent = messages.SendMessages(
            message_pb2.SendMessagesRequest(messages=[task]), metadata=identity("py-lead")).results[0]
        print("sent", sent.id)

        claimed = messages.ClaimMessages(
            message_pb2.ClaimMessagesRequest(wait=duration_pb2.Duration(seconds=5)),
            metadata=identity("py-builder")).claims[0]
        print("claimed", claimed.claim_id, claimed.message.subject, json.loads(claimed.message.payload)["task_id"])

        messages.AckMessages(message_pb2.AckMessagesRequest(ids=[claimed.claim_id]), metadata=identity("py-builder"))
        shown = messages.GetMessage(message_pb2.GetMessageRequest(id=sent.id), metadata=identity("py-lead"))
        print("state", message_pb2.DeliveryState.Name(shown.deliveries[0].state))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
