"""Locks and tokens as context managers, and that they are lost in time."""

import threading
import unittest

from brokerd import Busy, Client, Conflict, Lost
from brokerd.blocking.hold import Hold
from brokerd.holds import LockTerms
from brokerd.v1 import lock_pb2, token_pb2

from .broker import PATIENCE, Broker, BrokerCase


def held(client, path):
    """Returns the agents that hold a lock which conflicts with path."""
    return [lock.agent for lock in client.stubs.locks.ListLocks(lock_pb2.ListLocksRequest(path=path)).locks]


class Holds(BrokerCase):
    def test_a_lock_is_held_in_the_block_and_released_after_it(self):
        one, other = self.agent("lock-1"), self.agent("lock-2")
        with one.locks.hold("block/", reason="rename") as hold:
            self.assertGreater(hold.fence, 0)
            hold.check()
            self.assertEqual(held(other, "block/a.go"), ["lock-1"])
            with self.assertRaisesRegex(Busy, r"lock-1 \(block/\)") as raised:
                with other.locks.hold(["block/a.go"], wait=0):
                    self.fail("two agents hold the same file")
            self.assertEqual((raised.exception.reason, raised.exception.obstacles[0].agent), ("BUSY", "lock-1"))
        self.assertEqual(held(other, "block/a.go"), [])

    def test_shared_locks_go_together(self):
        one, other = self.agent("shared-1"), self.agent("shared-2")
        with one.locks.hold("read/", shared=True, wait=0), other.locks.hold("read/", shared=True, wait=0):
            self.assertEqual(held(one, "read/"), ["shared-1", "shared-2"])

    def test_two_holds_of_one_agent_exclude_each_other(self):
        one = self.agent("twice-1")
        with one.locks.hold("twice/"), self.assertRaises(Conflict):
            one.locks.hold("twice/", wait=0).__enter__()

    def test_a_hold_waits_for_its_turn(self):
        one, other = self.agent("turn-1"), self.agent("turn-2")
        got = threading.Event()

        def wait():
            with other.locks.hold("turn/", wait=PATIENCE, max_hold=20):
                got.set()

        waiting = threading.Thread(target=wait)
        with one.locks.hold("turn/"):
            waiting.start()
            next(e for e in one.events.follow(after=0, types=["lock.queued"]) if e.source == "turn-2")
            self.assertFalse(got.is_set())
        self.assertTrue(got.wait(PATIENCE))
        waiting.join()

    def test_a_hold_is_extended(self):
        one = self.agent("extend-1")
        with one.locks.hold("extend/", max_hold=15) as hold:
            until = one.stubs.locks.ListLocks(lock_pb2.ListLocksRequest(path="extend/")).locks[0].held_until
            next(e for e in one.events.follow(after=hold.fence, types=["lock.extended"]) if e.source == "extend-1")
            later = one.stubs.locks.ListLocks(lock_pb2.ListLocksRequest(path="extend/")).locks[0].held_until
            self.assertGreater(later.ToNanoseconds(), until.ToNanoseconds())
            hold.check()

    def test_an_error_of_the_block_releases_the_lock(self):
        one = self.agent("error-1")
        with self.assertRaises(ZeroDivisionError), one.locks.hold("error/"):
            1 / 0
        self.assertEqual(held(one, "error/"), [])

    def test_a_token_is_held_in_the_block(self):
        one, other = self.agent("token-1"), self.agent("token-2")
        get = token_pb2.GetTokenRequest(type="deploy", scope="staging")
        with one.tokens.hold("deploy", "staging"):
            self.assertEqual(one.stubs.tokens.GetToken(get).token.agent, "token-1")
            with self.assertRaises(Conflict):
                other.tokens.hold("deploy", "staging", wait=0).__enter__()
        self.assertEqual(one.stubs.tokens.GetToken(get).token.state, token_pb2.TOKEN_STATE_AVAILABLE)


class Losses(BrokerCase):
    def revoke(self, path):
        self.client().stubs.locks.ForceReleaseLocks(lock_pb2.ForceReleaseLocksRequest(paths=[path], reason="test"))

    def test_a_revoked_lock_is_lost(self):
        one = self.agent("revoked-1")
        with self.assertRaises(Lost) as raised:
            with one.locks.hold("revoked/", max_hold=12) as hold:
                self.revoke("revoked/")
                self.assertTrue(hold.lost.wait(PATIENCE))
                with self.assertRaises(Lost):
                    hold.check()
        self.assertEqual(raised.exception.reason, "LOCK_LOST")

    def test_the_broker_refuses_changes_after_the_loss(self):
        one = self.agent("fenced-1")
        with self.assertRaises(Lost), one.locks.hold("fenced/", max_hold=12) as hold:
            hold.client.state.put("fenced", 1)
            self.revoke("fenced/")
            with self.assertRaises(Lost) as raised:
                hold.client.state.put("fenced", 2)
            self.assertEqual(raised.exception.reason, "FENCE_LOST")
            self.assertTrue(hold.lost.wait(PATIENCE))
        self.assertEqual(one.state.get("fenced").value, 1)


class Frozen(unittest.TestCase):
    """The daemon answers nothing, and only the client's clock can tell that the hold has ended."""

    def setUp(self):
        self.broker = Broker()
        self.addCleanup(self.broker.remove)
        self.client = Client(self.broker.address, agent="holder", timeout=PATIENCE)
        self.addCleanup(self.client.close)
        self.client.register()

    def loses(self, **options):
        """Freezes the daemon in a hold, and returns the error after it has continued."""
        with self.assertRaises(Lost) as raised:
            with self.client.locks.hold("src/", **options) as hold:
                self.broker.freeze()
                self.assertTrue(hold.lost.wait(PATIENCE))
                with self.assertRaises(Lost):
                    hold.check()
                self.broker.thaw()
                # The broker has not granted the lock to another agent: the loss was in time.
                other = Client(self.broker.address, agent="other", timeout=PATIENCE)
                self.addCleanup(other.close)
                other.register()
                granted = other.events.list(types=["lock.granted"])
                self.assertEqual([e.source for e in granted], ["holder"])
        return raised.exception

    def test_a_lock_is_lost_before_its_longest_hold_ends(self):
        self.assertEqual(self.loses(max_hold=4).reason, "NOT_EXTENDED")

    def test_a_lock_is_lost_before_the_lease_ends(self):
        self.client.register(lease=4)
        self.assertEqual(self.loses().reason, "NOT_EXTENDED")

    def test_check_knows_the_time_by_itself(self):
        now = [100.0]
        hold = Hold(self.client, LockTerms("clock/", False, 0, 20, ""), clock=lambda: now[0])
        with self.assertRaises(Lost), hold:
            hold.check()
            now[0] += 14.9  # 20 s, less the margin of a quarter
            hold.check()
            now[0] += 0.2
            hold.check()

    def test_a_daemon_that_is_killed_and_restarted_does_not_end_the_hold(self):
        with self.client.locks.hold("restart/") as hold:
            self.broker.kill()
            self.broker.start()
            hold.client.state.put("restarted", True)  # the fence is still good
            hold.check()
