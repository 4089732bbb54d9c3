"""Connecting, identity, and the exceptions of refused calls."""

import pathlib
import unittest

import brokerd
from brokerd import Client, Invalid, NotFound, Unreachable

from .broker import BrokerCase


class Messages(BrokerCase):
    def test_a_sent_message_is_claimed_and_acknowledged(self):
        lead, builder = self.agent("lead-1"), self.agent("builder-1", "builder")
        receipt = lead.send("builder-1", "Add login", type="task_assignment", payload={"task_id": "t1"}, task_id="t1")
        claim = builder.claim(wait=5)
        self.assertEqual((claim.id, claim.revision), (receipt.id, receipt.revision))
        self.assertEqual((claim.sender, claim.type, claim.text, claim.payload, claim.task_id),
                         ("lead-1", "task_assignment", "Add login", {"task_id": "t1"}, "t1"))
        self.assertEqual(builder.ack(claim), [claim.claim_id])
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


class Addresses(unittest.TestCase):
    def test_nothing_listens(self):
        with self.assertRaisesRegex(Unreachable, "start one with `brokerd`"):
            Client("unix:///nonexistent/brokerd.sock").agents()

    def test_an_address_is_a_socket_or_a_port(self):
        with self.assertRaisesRegex(Invalid, "neither unix:///path/of/socket nor host:port"):
            Client("localhost")

    def test_a_credential_stays_on_this_machine(self):
        with self.assertRaisesRegex(Invalid, "not on this machine"):
            Client("192.0.2.1:7421", credential="secret")


class Version(unittest.TestCase):
    def test_it_is_that_of_the_broker(self):
        version = pathlib.Path(__file__).parents[3] / "VERSION"
        self.assertEqual(brokerd.__version__, version.read_text().strip())
