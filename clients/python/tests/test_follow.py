"""Readers that continue over a restart of the daemon."""

import unittest

import grpc

from brokerd import Client

from .broker import PATIENCE, Broker


class Restart(unittest.TestCase):
    """The daemon is killed with SIGKILL between the items that a reader takes."""

    def setUp(self):
        self.broker = Broker()
        self.addCleanup(self.broker.remove)
        self.client = Client(self.broker.address, agent="reader", timeout=PATIENCE)
        self.addCleanup(self.client.close)
        self.client.register()

    def read_over_restarts(self, items, add, key):
        """Adds 30 items around two kills, and returns what the reader has seen of them."""
        seen = []
        for round in range(3):
            for n in range(10):
                add(f"item-{round}-{n}")
            while len(seen) < 10 * (round + 1):
                seen.append(key(next(items)))
            self.broker.kill()
            self.broker.start()
        items.close()
        return seen

    EXPECTED = [f"item-{round}-{n}" for round in range(3) for n in range(10)]

    def test_mail(self):
        seen = self.read_over_restarts(
            self.client.follow(types=["note"]), lambda text: self.client.send("reader", text, type="note"), lambda m: m.text)
        self.assertEqual(seen, self.EXPECTED)

    def test_events(self):
        seen = self.read_over_restarts(
            self.client.events.follow(after=0, types=["build.done"]),
            lambda text: self.client.events.publish("build.done", text), lambda event: event.summary)
        self.assertEqual(seen, self.EXPECTED)

    def test_state(self):
        seen = self.read_over_restarts(
            self.client.state.watch("item-", after=0), lambda key: self.client.state.put(key, 1), lambda changes: changes[0].key)
        self.assertEqual(seen, self.EXPECTED)

    def test_a_position_that_is_not_possible_ends_the_iterator(self):
        with self.assertRaises(Exception) as raised:
            next(self.client.events.follow(after=10**15))
        self.assertEqual(raised.exception.reason, "INVALID_ARGUMENT")


class Disconnected(grpc.RpcError):
    """The connection broke before the answer arrived."""

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "Socket closed"

    def trailing_metadata(self):
        return ()


class LostAnswer:
    """A method of a stub whose first call the broker executes, but whose answer does not arrive."""

    streams = False

    def __init__(self, method):
        self.method, self.calls = method, 0

    def future(self, *args, **kwargs):
        self.calls += 1
        answer = self.method.future(*args, **kwargs)
        if self.calls == 1:
            answer.result()
            answer.result = self.disconnected
        return answer

    def disconnected(self):
        raise Disconnected()


class Writes(unittest.TestCase):
    def test_a_call_whose_answer_was_lost_is_executed_once(self):
        broker = Broker()
        self.addCleanup(broker.remove)
        client = Client(broker.address, agent="writer", timeout=PATIENCE)
        self.addCleanup(client.close)
        client.register()
        stubs = client.stubs
        stubs.messages.SendMessages = LostAnswer(stubs.messages.SendMessages)
        self.assertTrue(client.send("writer", "once").duplicate)
        self.assertEqual((stubs.messages.SendMessages.calls, len(client.inbox())), (2, 1))
        stubs.messages.ClaimMessages = LostAnswer(stubs.messages.ClaimMessages)
        claim = client.claim()
        self.assertEqual((claim.text, claim.resumed), ("once", True))
        stubs.messages.Reply = LostAnswer(stubs.messages.Reply)
        client.reply(claim, "answered")
        self.assertEqual([message.text for message in client.inbox()], ["answered"])

    def test_a_call_is_repeated_while_the_daemon_restarts(self):
        broker = Broker()
        self.addCleanup(broker.remove)
        client = Client(broker.address, agent="writer", timeout=PATIENCE)
        self.addCleanup(client.close)
        client.register()
        for n in range(3):
            client.send("writer", f"message {n}")
            broker.kill()
            broker.start()
        self.assertEqual([m.text for m in client.inbox()], [f"message {n}" for n in range(3)])
