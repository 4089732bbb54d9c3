"""Connecting, identity, and the exceptions of refused calls."""

import pathlib
import threading
import unittest
from concurrent import futures
from unittest import mock

import grpc

import brokerd
from brokerd import Client, Invalid, NotFound, Unreachable, agents
from brokerd.blocking import client as blocking_client
from brokerd.operation import Pause
from brokerd.v1 import agent_pb2

from .broker import PATIENCE, Broker, BrokerCase


class Messages(BrokerCase):
    def test_a_sent_message_is_claimed_and_acknowledged(self):
        lead, builder = self.agent("lead-1"), self.agent("builder-1", "builder")
        receipt = lead.send("builder-1", "Add login", type="task_assignment", payload={"task_id": "t1"}, task_id="t1")
        claim = builder.claim(wait=PATIENCE)
        self.assertEqual((claim.id, claim.revision), (receipt.id, receipt.revision))
        self.assertEqual((claim.sender, claim.type, claim.text, claim.payload, claim.task_id),
                         ("lead-1", "task_assignment", "Add login", {"task_id": "t1"}, "t1"))
        self.assertEqual(claim.type_as_sent, "")
        self.assertEqual(builder.ack(claim), [claim.claim_id])
        lead.send("builder-1", "Add login", type="TaskAssignment")
        claim = builder.claim(wait=PATIENCE)
        self.assertEqual((claim.type, claim.type_as_sent), ("task_assignment", "TaskAssignment"))
        builder.ack(claim)
        self.assertIsNone(builder.claim())

    def test_receivers_are_written_as_in_brokerctl(self):
        lead = self.agent("lead-2", "lead-role")
        for name in ("coder-1", "coder-2"):
            self.agent(name, "coder")
        for to, recipients in (("coder-1", 1), ("role:coder", 1), ("coder-*", 2)):
            with self.subTest(to=to):
                self.assertEqual(lead.send(to, "hello").recipient_count, recipients)
        self.assertGreater(lead.send("everyone", "hello").recipient_count, 1)

    def test_a_long_text_is_the_body(self):
        lead = self.agent("lead-3")
        lead.send("lead-3", "one\ntwo")
        claim = lead.claim()
        self.assertEqual((claim.subject, claim.body, claim.text), ("", "one\ntwo", "one\ntwo"))

    def test_operators_have_a_mailbox(self):
        operator, agent = self.client(), self.agent("asked-1")
        operator.send("asked-1", "Which branch?", requires_response=True)
        agent.reply(agent.claim(wait=PATIENCE), "main")
        agent.send("operator", "May I deploy?")
        mail = operator.inbox()
        self.assertEqual([message.text for message in mail], ["main", "May I deploy?"])
        self.assertEqual([message.text for _, message in zip(mail, operator.follow())], ["main", "May I deploy?"])
        operator.reply(mail[1], "yes")  # finishes it
        operator.ack(mail[0])
        self.assertEqual(operator.inbox(), [])
        self.assertEqual(agent.claim(wait=PATIENCE).text, "yes")

    def test_a_message_has_no_unknown_option(self):
        with self.assertRaisesRegex(TypeError, "no option subjekt"):
            self.agent("lead-4").send("lead-4", subjekt="x")


class Identity(BrokerCase):
    def test_agents_share_a_connection(self):
        one = self.agent("shared-1")
        other = one.as_agent("shared-2")
        other.register("helper", capabilities=["go"])
        self.assertEqual([(a.name, list(a.capabilities)) for a in one.agents(role="helper")], [("shared-2", ["go"])])

    def test_a_session_that_does_not_exist_is_not_found(self):
        with self.assertRaises(NotFound) as raised:
            self.client("alone").in_session("nowhere").register()
        self.assertEqual(raised.exception.reason, "SESSION_NOT_FOUND")


class Heartbeats(BrokerCase):
    def beats(self, client):
        """Returns an event that the next heartbeat in the background sets."""
        beaten, heartbeat = threading.Event(), client.stubs.agents.Heartbeat

        class Noticed:
            streams = False

            def future(self, *args, **kwargs):
                answer = heartbeat.future(*args, **kwargs)
                answer.add_done_callback(lambda done: done.exception() or beaten.set())
                return answer

        client.stubs.agents.Heartbeat = Noticed()
        return beaten

    def test_they_renew_the_lease_until_the_agent_deregisters(self):
        one = self.client("beating-1")
        beaten, pauses = self.beats(one), []

        def shorter(seconds):
            pauses.append(seconds)
            return Pause(0.1)

        with mock.patch.object(agents, "Pause", shorter):
            one.register(lease=3600)
            self.assertTrue(beaten.wait(PATIENCE))
            self.assertEqual(len(one._calls.link.registered), 1)
            one.deregister()
        self.assertIn(1200, pauses)
        self.assertEqual(len(one._calls.link.registered), 0)

    def test_they_report_activity(self):
        one = self.agent("beating-2")
        one.heartbeat("blocked", activity="waits for the schema", progress=0.25)
        agent = next(agent for agent in one.agents() if agent.name == "beating-2")
        self.assertEqual((agent.activity, agent.progress, agent.status), ("waits for the schema", 0.25, agent_pb2.AGENT_STATUS_BLOCKED))
        with self.assertRaisesRegex(Invalid, "'asleep' is none of initializing, active"):
            one.heartbeat("asleep")

    def test_an_agent_that_returns_learns_what_it_lost(self):
        first = self.client("returning")
        first.register(lease=3600)
        first.send("returning", "work")
        claim = first.claim(claim_for=3600)
        first.register(lease=1)
        first._detach()  # as if the program had been killed
        watcher = self.client()
        next(e for e in watcher.events.follow(after=0, types=["agent.failed"]) if "returning" in [e.source, *e.related])
        again = self.agent("returning")
        self.assertEqual([loss.name for loss in again.losses], [claim.claim_id])


class Ends(BrokerCase):
    def state(self, name):
        return next(agent for agent in self.client().agents() if agent.name == name).state

    def test_close_reports_the_agents_of_the_connection_as_stopped(self):
        one = self.client("ends-1")
        one.register()
        one.as_agent("ends-2").register()
        self.client("ends-3").register()
        one.close()
        self.assertEqual([self.state(f"ends-{i}") for i in (1, 2, 3)], ["stopped", "stopped", "starting"])

    def test_the_end_of_a_block_stops_the_agent_unless_an_error_leaves_it(self):
        for error, state in ((None, "stopped"), (SystemExit(0), "stopped"), (SystemExit(1), "starting"), (ValueError(), "starting")):
            try:
                with Client(self.broker.address, agent="ends-4") as one:
                    one.register()
                    if error:
                        raise error
            except (SystemExit, ValueError):
                pass
            self.assertEqual(self.state("ends-4"), state, repr(error))

    def test_an_agent_that_has_registered_elsewhere_goes_on(self):
        one, other = self.client("ends-5"), self.client("ends-5")
        one.register()
        other.register()
        one.close()
        self.assertEqual(self.state("ends-5"), "starting")

    def beats_once(self, one, lease, before):
        """Registers the agent, and sends one heartbeat in the background after before()."""
        due, done, pauses = threading.Event(), threading.Event(), []

        def paused(seconds):
            pauses.append(seconds)
            if len(pauses) == 1:
                due.wait(PATIENCE)
                return Pause(0)
            done.set()
            return Pause(3600)

        with mock.patch.object(agents, "Pause", paused):
            one.register(lease=lease)
            before()
            due.set()
            self.assertTrue(done.wait(PATIENCE))

    def test_an_agent_that_failed_and_returned_is_reported_as_stopped(self):
        one, streams = self.client("ends-6"), []

        def fail_and_return():
            next(e for e in self.client().events.follow(after=0, types=["agent.failed"]) if "ends-6" in [e.source, *e.related])
            one.send("ends-6", "work")
            streams.append(one.follow())
            next(streams[0])  # the open stream keeps the lease

        self.beats_once(one, 1, fail_and_return)
        one.close()
        self.assertEqual(self.state("ends-6"), "stopped")

    def test_an_agent_that_has_registered_elsewhere_goes_on_after_a_heartbeat(self):
        one, other = self.client("ends-7"), self.client("ends-7")
        self.beats_once(one, 3600, other.register)
        one.close()
        self.assertEqual(self.state("ends-7"), "starting")

    def test_a_registration_is_known_by_session_and_name(self):
        one = self.client("ends-8")
        agent = one.register()
        one.at_incarnation(agent.incarnation).deregister()
        self.assertEqual(one._calls.link.registered, {})

    def test_the_reports_of_a_broker_that_is_away_share_one_deadline(self):
        one, given = self.client("ends-9"), []
        for i in range(3):
            one.as_agent(f"ends-9-{i}").register()
        now = iter([100.0, 100.0, 101.5, 102.5])

        def stopped(timeout):
            given.append(timeout)
            yield from ()

        clock = mock.Mock(monotonic=lambda: next(now))
        with mock.patch.object(blocking_client, "stopped", stopped), mock.patch.object(blocking_client, "time", clock):
            one.close()
        self.assertEqual(given, [2.0, 0.5, -0.5])
        self.assertEqual(list(agents.stopped(-0.5)), [])


class Rest(BrokerCase):
    def test_artifacts(self):
        one = self.agent("artifacts-1")
        content = bytes(range(256)) * 1000
        version = one.artifacts.upload("design/spec.bin", content, description="the spec")
        self.assertEqual((version.version, one.artifacts.download("design/spec.bin")), (1, content))
        self.assertEqual(one.artifacts.get("design/spec.bin").description, "the spec")
        with self.assertRaises(NotFound):
            one.artifacts.download("missing")

    def test_state(self):
        one = self.agent("state-1")
        for value in ("text", 7, True, None, [1, {"a": None}], 2**70):
            one.state.put("state/value", value)
            self.assertEqual(one.state.get("state/value").value, value)
        self.assertEqual([one.state.append("state/notes", text) for text in ("one", "two")], [1, 2])
        self.assertEqual([entry.text for entry in one.state.get("state/notes").entries], ["one", "two"])
        entries, revision = one.state.list("state/")
        self.assertEqual([entry.key for entry in entries], ["state/notes", "state/value"])
        self.assertEqual({entry.author for entry in entries}, {"state-1"})
        changes = one.state.watch("state/", after=revision)
        self.assertEqual([one.state.delete("state/value"), one.state.delete("state/value")], [True, False])
        self.assertEqual([change.deleted for change in next(changes)], [True])
        self.assertIsNone(one.state.get("state/value"))

    def test_decisions(self):
        one, critic = self.agent("decisions-1"), self.agent("decisions-2")
        opened = one.decisions.open("review", "decisions-2", title="Look", body="see a.go")
        self.assertEqual([d.id for d in critic.decisions.list(owed_by="decisions-2")], [opened.id])
        critic.decisions.decide(opened.id, "revise", feedback=[{"severity": "minor", "text": "typo", "file": "a.go"}])
        self.assertEqual(one.decisions.wait(opened.id, timeout=PATIENCE).rounds[0].feedback[0].text, "typo")
        one.decisions.resubmit(opened.id, body="better")
        critic.decisions.decide(opened.id, "approve")
        self.assertEqual(one.decisions.get(opened.id).verdict, "approve")

    def test_channels_and_questions(self):
        one, other = self.agent("channel-1"), self.agent("channel-2")
        one.subscribe("news")
        other.send("channel:news", "hello")
        self.assertEqual([message.text for message in one.inbox()], ["hello"])
        one.reply(one.inbox()[0], "seen")
        self.assertEqual([message.text for message in other.inbox()], ["seen"])
        other.ack(*other.inbox())
        self.assertEqual(other.inbox(), [])
        self.assertIsNone(other.ask("channel-1", "Ready?", timeout=0.01))


class NoLeader(grpc.GenericRpcHandler):
    """Answers every call as a replica does while no replica leads."""

    def service(self, handler_call_details):
        def refuse(request, context):
            context.set_trailing_metadata((("brokerd-reason", "NO_LEADER"),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "no replica leads")

        return grpc.unary_unary_rpc_method_handler(refuse)


class Replicas(BrokerCase):
    def test_the_client_goes_on_with_another_address(self):
        other = Broker()
        self.addCleanup(other.remove)
        self.addCleanup(other.stop)
        client = self.client(address=f"unix:///nowhere/brokerd.sock,{other.address}, {self.broker.address}")
        client.send("operator", "hello")
        self.assertEqual([message.text for message in client.inbox()], ["hello"])
        other.kill()
        self.assertEqual(client.inbox(), [])  # of the next one

    def replicas(self):
        """Starts another broker, and returns it with an agent of the shared one and a client of both.

        A position in the other one exists in the shared one too.
        """
        other = Broker()
        self.addCleanup(other.remove)
        witness = self.agent("witness")
        for n in range(10):
            witness.events.publish("test.filler", str(n))
        client = self.client(address=f"{other.address},{self.broker.address}")
        return other, witness, client

    def test_a_call_leaves_a_replica_that_is_frozen(self):
        other, _, client = self.replicas()
        self.assertEqual(client.agents(), [])
        client._calls.timeout = 5
        other.freeze()
        self.assertEqual([agent.name for agent in client.agents()], ["witness"])

    def test_a_stream_leaves_a_replica_that_is_frozen(self):
        other, witness, client = self.replicas()
        first = client.as_agent("first")
        first.register()
        first.events.publish("test.frozen", "first")
        events = client.events.follow(after=0, types=["test.frozen"])
        self.assertEqual(next(events).summary, "first")
        other.freeze()
        witness.events.publish("test.frozen", "second")
        self.assertEqual(next(events).summary, "second")

    def test_calls_and_streams_leave_a_replica_without_a_leader(self):
        witness = self.agent("witness")
        witness.events.publish("test.led", "second")
        server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[NoLeader()])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')},{self.broker.address}"
        server.start()
        self.addCleanup(lambda: server.stop(None).wait())
        self.assertEqual([agent.name for agent in self.client(address=address).agents()], ["witness"])
        events = self.client(address=address).events.follow(after=0, types=["test.led"])
        self.assertEqual(next(events).summary, "second")

    def test_an_error_names_all_addresses(self):
        first, second = "unix:///nonexistent/a.sock", "unix:///nonexistent/b.sock"
        with self.assertRaisesRegex(Unreachable, f"at {first} or {second} does not answer .*; start one of its replicas"):
            self.client(address=f"{first}, {second}", timeout=0.1).agents()


class Addresses(unittest.TestCase):
    def test_nothing_listens(self):
        with self.assertRaisesRegex(Unreachable, "start one with `brokerctl up`"):
            Client("unix:///nonexistent/brokerd.sock").agents()

    def test_an_address_is_a_socket_or_a_port(self):
        with self.assertRaisesRegex(Invalid, "is none of unix:///path/of/socket, tls://host:port and host:port"):
            Client("localhost")

    def test_a_credential_stays_on_this_machine(self):
        with self.assertRaisesRegex(Invalid, "not on this machine"):
            Client("192.0.2.1:7421", credential="secret")


class Version(unittest.TestCase):
    def test_it_is_that_of_the_broker(self):
        version = pathlib.Path(__file__).parents[3] / "VERSION"
        self.assertEqual(brokerd.__version__, version.read_text().strip())
