"""Two agents: the lead sends a task, and the builder claims it, works and acknowledges it."""

from brokerd import Client

with Client.from_env() as broker:
    lead, builder = broker.as_agent("py-lead"), broker.as_agent("py-builder")
    lead.register(role="lead")
    builder.register(role="builder", capabilities=["python"])

    sent = lead.send("role:builder", "Add login", type="task_assignment", payload={"task_id": "t1"})
    print("sent", sent.id)

    claim = builder.claim(wait=5)
    print("claimed", claim.text, claim.payload["task_id"])
    builder.ack(claim)
