"""Each exception, from a call that the broker really refused."""

import os
from unittest import mock

import grpc

import brokerd
from brokerd import connection, errors
from brokerd.blocking import runner
from brokerd.v1 import artifact_pb2, lock_pb2, session_pb2

from .broker import PATIENCE, Broker, BrokerCase, environment


class Table(BrokerCase):
    def refused(self, kind, reason, call):
        with self.assertRaises(kind) as raised:
            call()
        self.assertIs(type(raised.exception), kind)
        self.assertEqual(raised.exception.reason, reason)
        self.assertTrue(raised.exception.text)
        self.assertEqual(str(raised.exception), raised.exception.text)
        return raised.exception

    def test_not_found(self):
        one = self.agent("found-1")
        error = self.refused(brokerd.NotFound, "AGENT_NOT_FOUND", lambda: one.send("found-2", "x"))
        self.assertIn("found-1", error.text)  # the nearest name
        self.assertEqual(error.resource, "found-2")

    def test_invalid_names_each_field(self):
        one = self.agent("invalid-1")
        error = self.refused(brokerd.Invalid, "INVALID_ARGUMENT", lambda: one.send("invalid-1", "x", priority=99, type="a b"))
        self.assertEqual(set(error.fields), {"messages[0].priority", "messages[0].type"})
        self.assertIn("1 to 10", error.fields["messages[0].priority"])

    def test_an_agent_without_a_name_is_named_in_the_words_of_the_client(self):
        error = self.refused(brokerd.Invalid, "INVALID_ARGUMENT", self.client().register)
        self.assertEqual(error.text, 'agent: is empty; a name is required; name it with agent="NAME" or BROKERD_AGENT')

    def test_a_time_span_is_a_number_or_a_timedelta(self):
        one = self.agent("span-1")
        with self.assertRaisesRegex(brokerd.Invalid, "'5s' is no time span"):
            one.claim(wait="5s")

    def test_conflict_has_the_present_revision(self):
        one = self.agent("conflict-1")
        written = one.state.put("conflict", 1)
        error = self.refused(brokerd.Conflict, "STATE_CHANGED", lambda: one.state.put("conflict", 2, if_revision=0))
        self.assertEqual(error.facts["revision"], str(written.revision))
        one.tasks.create("once", id="conflict-task")
        self.refused(brokerd.Conflict, "TASK_EXISTS", lambda: one.tasks.create("again", id="conflict-task"))

    def test_a_request_id_stands_for_one_request(self):
        one = self.agent("request-1")
        first, again = (one.send("request-1", "x", request_id="0190b5a0-0000-7000-8000-000000000001") for _ in range(2))
        self.assertEqual((first.id, again.duplicate), (again.id, True))
        self.refused(brokerd.Conflict, "REQUEST_ID_REUSED",
                     lambda: one.send("request-1", "y", request_id="0190b5a0-0000-7000-8000-000000000001"))

    def test_lost(self):
        one = self.agent("lost-1")
        one.send("lost-1", "x")
        claim = one.claim()
        one.release(claim)
        self.refused(brokerd.Lost, "CLAIM_LOST", lambda: one.extend(claim))
        self.refused(brokerd.Lost, "FENCE_LOST", lambda: one.fenced(1).state.put("lost", 1))
        stale = self.client("lost-1", incarnation=1)
        one.register()
        self.refused(brokerd.Lost, "STALE_INCARNATION", lambda: one.at_incarnation(1).state.put("lost", 1))
        self.refused(brokerd.Lost, "STALE_INCARNATION", lambda: stale.state.put("lost", 1))
        task = one.tasks.claim(one.tasks.create("x", id="lost-task").id)
        one.tasks.release(task)
        self.refused(brokerd.Lost, "TASK_LOST", lambda: one.tasks.complete(task))

    def test_precondition(self):
        self.refused(brokerd.Precondition, "AGENT_NOT_REGISTERED", self.client("stranger").claim)
        nameless = self.refused(brokerd.Precondition, "AGENT_REQUIRED", self.client().claim)
        self.assertIn('name it with agent="NAME" or BROKERD_AGENT', nameless.text)
        self.refused(brokerd.Precondition, "NO_OPEN_CLAIM", self.agent("idle-1").ack)

    def test_denied(self):
        one = self.agent("denied-1")
        revoke = lock_pb2.ForceReleaseLocksRequest(paths=["x"], reason="x")
        self.refused(brokerd.Denied, "NOT_A_DIRECTOR", lambda: one.send("denied-1", "", type="halt"))
        with self.assertRaises(grpc.RpcError) as raised:  # a stub raises the errors of grpc
            one.stubs.locks.ForceReleaseLocks(revoke)
        self.assertIsInstance(errors.from_rpc(raised.exception, ""), brokerd.Denied)

    def test_exhausted_says_when_to_retry(self):
        operator, one = self.client(), self.agent("exhausted-1")
        operator.stubs.sessions.ConfigureSession(session_pb2.ConfigureSessionRequest(
            settings=session_pb2.SessionSettings(send_rate=0.001, send_burst=1)))
        one.send("exhausted-1", "x")
        error = self.refused(brokerd.Exhausted, "SEND_RATE", lambda: one.send("exhausted-1", "x"))
        self.assertGreater(error.retry_after, 100)

    def test_out_of_range(self):
        one = self.agent("range-1")
        one.artifacts.upload("range.md", b"short")
        with self.assertRaises(grpc.RpcError) as raised:
            list(one.stubs.artifacts.DownloadArtifact(artifact_pb2.DownloadArtifactRequest(name="range.md", offset=6)))
        error = errors.from_rpc(raised.exception, "")
        self.assertEqual((type(error), error.reason), (brokerd.OutOfRange, "OFFSET_TOO_LARGE"))


class Away(BrokerCase):
    def test_a_client_waits_for_a_broker_that_restarts(self):
        broker = Broker()
        self.addCleanup(broker.remove)
        restarts = [broker.start]
        pause = connection.Retry.pause

        def restart(retry, error):
            seconds = pause(retry, error)
            if restarts:  # the first call has failed
                restarts.pop()()
            return seconds

        broker.kill()
        with mock.patch.object(connection.Retry, "pause", restart), \
                mock.patch.object(connection, "DEFAULT_TIMEOUT", PATIENCE), \
                mock.patch.dict(os.environ, environment(BROKERD_DATA=broker.folder), clear=True):
            client = brokerd.Client.from_env(agent="early", timeout=PATIENCE)
            self.addCleanup(client.close)
            self.assertEqual(client.register().name, "early")
        self.assertEqual(restarts, [])

    def test_a_client_does_not_wait_for_a_broker_that_was_never_there(self):
        with mock.patch.object(runner.Scope, "sleep", side_effect=lambda seconds: self.assertEqual(seconds, 0)):
            with self.assertRaises(brokerd.Unreachable):
                self.client("early", address="unix:///nonexistent/brokerd.sock").register()

    def test_a_broker_that_ended_is_unreachable(self):
        broker = Broker()
        self.addCleanup(broker.remove)
        client = brokerd.Client(broker.address, agent="away", timeout=PATIENCE)
        self.addCleanup(client.close)
        client.register()
        client._calls.timeout = 0.5
        broker.kill()
        with self.assertRaisesRegex(brokerd.Unreachable, "start one with `brokerctl up`"):
            client.send("away", "x")
        broker.start()

    def test_a_frozen_broker_is_unreachable(self):
        broker = Broker()
        self.addCleanup(broker.remove)
        client = brokerd.Client(broker.address, agent="away", timeout=PATIENCE)
        self.addCleanup(client.close)
        client.register()
        client._calls.timeout = 0.5
        broker.freeze()
        with self.assertRaisesRegex(brokerd.Unreachable, "does not answer in time"):
            client.send("away", "x")

    def test_a_closed_client_says_so(self):
        client = self.agent("closed-1")
        client.close()
        with self.assertRaisesRegex(brokerd.Closed, "the client is closed"):
            client.claim()
