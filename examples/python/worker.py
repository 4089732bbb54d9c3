"""An agent of brokerd in Python that does the tasks of its role, until none has come for a second.

usage: worker.py ADDRESS [CREDENTIAL-FILE]     an ADDRESS is unix:///PATH, or HOST:PORT with a credential
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


def reason(error):
    """Returns the stable reason of a refused call, such as CLAIM_LOST."""
    return dict(error.trailing_metadata()).get("brokerd-reason")


def main(address, credential_file=None):
    me = [("brokerd-agent", "py-worker")]
    if credential_file:  # over TCP; on the Unix socket the broker knows the user
        me.append(("authorization", "Bearer " + pathlib.Path(credential_file).read_text().strip()))

    with grpc.insecure_channel(address) as channel:
        agents = agent_pb2_grpc.AgentServiceStub(channel)
        messages = message_pb2_grpc.MessageServiceStub(channel)
        # The lease: without any call for a day, the agent fails and loses what it holds.
        agents.RegisterAgent(agent_pb2.RegisterAgentRequest(
            role="builder", capabilities=["python"], lease=duration_pb2.Duration(seconds=86400)), metadata=me)

        take = message_pb2.ClaimMessagesRequest(
            wait=duration_pb2.Duration(seconds=1), claim_for=duration_pb2.Duration(seconds=1800))
        while claims := messages.ClaimMessages(take, metadata=me).claims:  # after a kill, first what it held
            claim = claims[0]
            try:
                result = build(claim.message.payload)
            except Exception as error:
                failed = message_pb2.Nack(claim_id=claim.claim_id, error=str(error))
                messages.NackMessages(message_pb2.NackMessagesRequest(nacks=[failed]), metadata=me)
                continue
            try:  # one transaction answers and finishes the task
                messages.Reply(message_pb2.ReplyRequest(
                    id=claim.claim_id, ack=True, message=message_pb2.Message(type="task_result", subject=result)), metadata=me)
            except grpc.RpcError as error:
                if reason(error) != "CLAIM_LOST":
                    raise
                continue  # another agent has the task now
            print(result)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
