"""work(): claims, settles, extends and drains, also while the daemon is killed."""

import collections
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import unittest
from unittest import mock

from brokerd import Client, Precondition, Reject, Release, RetryAfter
from brokerd.v1 import lock_pb2
from brokerd.v1 import message_pb2 as pb

from .broker import PATIENCE, Broker, BrokerCase, environment


def delivery(client, message):
    """Returns the only delivery of a message."""
    return client.stubs.messages.GetMessage(pb.GetMessageRequest(id=message.id)).deliveries[0]


class Background:
    """Runs a worker in a thread. The end of the block stops it and raises its error."""

    def __init__(self, work, handler, **options):
        self.stop = threading.Event()
        self.error = None

        def run():
            try:
                work(handler, stop=self.stop, **options)
            except Exception as error:
                self.error = error

        self.thread = threading.Thread(target=run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        if self.error:
            raise self.error


class Outcomes(BrokerCase):
    def settled(self, name, handler, **options):
        """Sends a message with one attempt left to a worker with the handler; returns its delivery afterwards."""
        lead, worker = self.agent(f"{name}-lead"), self.agent(name)
        sent = lead.send(name, "work", **options)
        done = threading.Event()

        def handle(claim):
            try:
                return handler(claim)
            finally:
                done.set()

        with Background(worker.work, handle):
            self.assertTrue(done.wait(PATIENCE))
        return lead, sent, delivery(lead, sent)

    def test_nothing_acknowledges(self):
        _, _, settled = self.settled("ack-1", lambda claim: None)
        self.assertEqual(settled.state, pb.DELIVERY_STATE_ACKED)

    def test_a_text_is_the_reply(self):
        lead, sent, settled = self.settled("text-1", lambda claim: f"done: {claim.text}")
        self.assertEqual(settled.state, pb.DELIVERY_STATE_ACKED)
        reply = lead.inbox()[0]
        self.assertEqual((reply.text, reply.sender, reply.proto.in_reply_to), ("done: work", "text-1", sent.id))

    def test_another_value_is_the_payload_of_the_reply(self):
        lead, _, _ = self.settled("value-1", lambda claim: {"passed": 7})
        self.assertEqual(lead.inbox()[0].payload, {"passed": 7})

    def test_an_exception_is_a_failed_attempt(self):
        def fail(claim):
            raise ValueError("no such repository")

        with self.assertLogs("brokerd", "ERROR") as logged:
            _, _, settled = self.settled("fail-1", fail)
        (line,) = logged.output
        self.assertRegex(line, "the handler has failed with <Claim .* 'work'>: no such repository")
        self.assertIn('raise ValueError("no such repository")', line)  # the traceback
        self.assertEqual((settled.state, settled.attempts), (pb.DELIVERY_STATE_DELAYED, 1))
        self.assertEqual(settled.history[0].error, "no such repository")

    def test_a_reply_that_cannot_be_sent_is_a_failed_attempt(self):
        with self.assertLogs("brokerd", "ERROR"):
            _, _, settled = self.settled("fail-2", lambda claim: object())
        self.assertEqual(settled.attempts, 1)
        self.assertIn("not JSON serializable", settled.history[0].error)

    def test_reject_makes_a_dead_letter(self):
        def reject(claim):
            raise Reject("impossible")

        with self.assertNoLogs("brokerd", "ERROR") if hasattr(self, "assertNoLogs") else contextlib.nullcontext():
            _, _, settled = self.settled("reject-1", reject)
        self.assertEqual((settled.state, settled.history[0].error), (pb.DELIVERY_STATE_DEAD, "impossible"))

    def test_retry_after_gives_the_delay(self):
        def later(claim):
            raise RetryAfter(3600)

        _, _, settled = self.settled("later-1", later)
        self.assertEqual(settled.state, pb.DELIVERY_STATE_DELAYED)
        self.assertGreater(settled.due_at.seconds - settled.claimed_at.seconds, 3000)

    def test_release_counts_no_attempt(self):
        seen = []

        def release_once(claim):
            seen.append(claim.attempt)
            if len(seen) == 1:
                raise Release()

        _, _, settled = self.settled("release-1", release_once)
        self.assertEqual(settled.attempts, 0)
        self.assertEqual(set(seen), {1})

    def test_an_operator_who_does_not_wait_gets_no_reply(self):
        operator, worker = self.client(), self.agent("operators-1")
        sent = operator.send("operators-1", "work")
        done = threading.Event()

        def answer(claim):
            done.set()
            return "nobody waits for this"

        with Background(worker.work, answer):
            self.assertTrue(done.wait(PATIENCE))
        self.assertEqual(delivery(operator, sent).state, pb.DELIVERY_STATE_ACKED)


class Claims(BrokerCase):
    def test_a_claim_is_extended_while_the_handler_runs(self):
        lead, worker = self.agent("extend-lead"), self.agent("extend-1")
        sent = lead.send("extend-1", "work")
        extended, done = threading.Event(), threading.Event()
        extend = worker.stubs.messages.ExtendClaims

        class Noticed:
            streams = False

            def future(self, *args, **kwargs):
                answer = extend.future(*args, **kwargs)
                answer.add_done_callback(lambda _: extended.set())
                return answer

        worker.stubs.messages.ExtendClaims = Noticed()

        def handle(claim):
            self.assertTrue(extended.wait(PATIENCE))
            done.set()

        with Background(worker.work, handle, claim_for=10):
            self.assertTrue(done.wait(PATIENCE))
        self.assertEqual((delivery(lead, sent).state, delivery(lead, sent).attempts), (pb.DELIVERY_STATE_ACKED, 0))

    def test_the_handler_notices_a_lost_claim(self):
        lead, worker = self.agent("lost-lead"), self.agent("lost-1")
        sent = lead.send("lost-1", "work")
        noticed = threading.Event()

        def handle(claim):
            worker.ack(claim)  # it is settled elsewhere
            if claim.lost.wait(PATIENCE):
                noticed.set()
            claim.check()

        with Background(worker.work, handle, claim_for=1):
            self.assertTrue(noticed.wait(PATIENCE))
        self.assertEqual(delivery(lead, sent).state, pb.DELIVERY_STATE_ACKED)

    def test_handlers_run_at_the_same_time(self):
        lead, worker = self.agent("many-lead"), self.agent("many-1")
        for _ in range(3):
            lead.send("many-1", "work")
        together = threading.Barrier(3, timeout=PATIENCE)
        met = threading.Event()

        def handle(claim):
            together.wait()
            met.set()

        with Background(worker.work, handle, concurrency=3):
            self.assertTrue(met.wait(PATIENCE))

    def test_an_agent_that_is_not_registered_ends_the_worker(self):
        with self.assertRaises(Precondition) as raised:
            with Background(self.client("stranger").work, print) as worker:
                worker.thread.join(PATIENCE)
        self.assertEqual(raised.exception.reason, "AGENT_NOT_REGISTERED")

    def test_what_is_not_finished_within_the_drain_is_released(self):
        lead, worker = self.agent("slow-lead"), self.agent("slow-1")
        sent = lead.send("slow-1", "work")
        begun, leave = threading.Event(), threading.Event()
        self.addCleanup(leave.set)

        def handle(claim):
            begun.set()
            leave.wait(PATIENCE)

        with Background(worker.work, handle, drain=0):
            self.assertTrue(begun.wait(PATIENCE))
        self.assertEqual((delivery(lead, sent).state, delivery(lead, sent).attempts), (pb.DELIVERY_STATE_PENDING, 0))


class Killed(unittest.TestCase):
    """The daemon is killed with SIGKILL and restarted while handlers run."""

    def setUp(self):
        self.broker = Broker()
        self.addCleanup(self.broker.remove)

    def client(self, agent):
        client = Client(self.broker.address, agent=agent, timeout=PATIENCE)
        self.addCleanup(client.close)
        client.register("worker")
        return client

    def through_a_kill(self, work, total):
        """Runs work over a kill. Returns how often the handler ran for each job."""
        runs = collections.Counter()
        lock = threading.Lock()
        in_flight, restarted, finished = threading.Event(), threading.Event(), threading.Event()

        def handle(job):
            with lock:
                runs[job.id] += 1
                nth = sum(runs.values())
            if nth == total // 3:
                in_flight.set()
            if nth >= total // 3:
                restarted.wait(PATIENCE)
            if nth == total:
                finished.set()

        with Background(work, handle, concurrency=3):
            self.assertTrue(in_flight.wait(PATIENCE))
            self.broker.kill()
            self.broker.start()
            restarted.set()
            self.assertTrue(finished.wait(PATIENCE))
        return runs

    def test_every_message_is_finished_once(self):
        lead, worker = self.client("lead"), self.client("worker-1")
        sent = [lead.send("worker-1", f"message {n}") for n in range(60)]
        runs = self.through_a_kill(worker.work, len(sent))
        self.assertEqual(runs, {message.id: 1 for message in sent})
        for message in sent:
            self.assertEqual((delivery(lead, message).state, delivery(lead, message).attempts), (pb.DELIVERY_STATE_ACKED, 0))
        claims = [json.loads(event.details)["claims"] for event in lead.events.list(types=["message.acked"], limit=1000)]
        acked = collections.Counter(claim for group in claims for claim in group)
        self.assertEqual(acked, {f"{message.revision}.1": 1 for message in sent})

    def test_every_task_is_completed_once(self):
        lead, worker = self.client("lead"), self.client("worker-1")
        created = [lead.tasks.create(f"task {n}", role="worker").id for n in range(30)]
        runs = self.through_a_kill(worker.tasks.work, len(created))
        self.assertEqual(runs, {task: 1 for task in created})
        self.assertEqual({task.id for task in lead.tasks.list(states=["done"])}, set(created))
        self.assertEqual(sum(task.attempts for task in lead.tasks.list()), 0)


class Tasks(BrokerCase):
    def test_a_task_is_completed_with_the_result(self):
        lead, worker = self.agent("task-lead"), self.agent("task-1", "tasker")
        task = lead.tasks.create("Write the schema", role="tasker")
        after = lead.tasks.create("Write the API", role="other", depends_on=[task.id])
        with Background(worker.tasks.work, lambda claim: {"title": claim.title}):
            lead.tasks.wait(task.id, timeout=PATIENCE)
        done = lead.tasks.get(task.id)
        self.assertEqual((done.result, done.holder), ('{"title":"Write the schema"}', "task-1"))
        self.assertEqual([t.id for t in lead.tasks.list(states=["ready"], role="other")], [after.id])

    def test_reject_fails_the_task_for_good(self):
        lead, worker = self.agent("reject-lead"), self.agent("rejecter", "rejecters")
        task = lead.tasks.create("impossible", role="rejecters")

        def reject(claim):
            raise Reject("no such repository")

        with Background(worker.tasks.work, reject):
            self.assertEqual(list(lead.tasks.wait(task.id, timeout=PATIENCE).attention), [task.id])
        self.assertEqual(lead.tasks.get(task.id).error, "no such repository")

    def test_a_worker_begins_with_the_tasks_that_its_agent_holds(self):
        lead, worker = self.agent("held-lead"), self.agent("holder-1", "holders")
        task = lead.tasks.create("begun", role="holders")
        self.assertEqual(worker.tasks.claim().id, task.id)
        resumed = []
        with Background(worker.tasks.work, lambda claim: resumed.append(claim.resumed)):
            lead.tasks.wait(task.id, timeout=PATIENCE)
        self.assertEqual(resumed, [True])


WORKER = """
import logging, sys
from brokerd import Client

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")

def handle(claim):
    print("working", flush=True)
    sys.stdin.readline()

with Client(sys.argv[1], agent="signalled") as client:
    client.register(lease=3600)
    client.work(handle)
print("drained")
"""


class Signals(BrokerCase):
    def worker(self):
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, self.broker.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "working\n")
        return process

    def setUp(self):
        self.lead = self.agent("signal-lead")
        self.lead.as_agent("signalled").register(lease=3600)
        self.first = self.lead.send("signalled", "first")
        self.addCleanup(self.lead.as_agent("signalled").deregister)

    def test_sigterm_lets_the_handler_finish(self):
        second = self.lead.send("signalled", "second")
        process = self.worker()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.stdout.readline(), "the worker stops, and waits for 1 handlers\n")
        out, errors = process.communicate("\n", timeout=PATIENCE)
        self.assertEqual((out, errors, process.returncode), ("drained\n", "", 0))
        self.assertEqual(delivery(self.lead, self.first).state, pb.DELIVERY_STATE_ACKED)
        self.assertEqual(delivery(self.lead, second).state, pb.DELIVERY_STATE_PENDING)
        self.assertEqual([a.state for a in self.lead.agents(pattern="signalled")], ["stopped"])

    def test_the_agent_holds_its_locks_after_work_until_the_client_is_closed(self):
        def held():
            return [lock.agent for lock in self.lead.stubs.locks.ListLocks(lock_pb2.ListLocksRequest(path="kept/")).locks]

        def terminate(claim):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

        worker = self.agent("keeping")
        self.lead.send("keeping", "work")
        with worker.locks.hold("kept/"):
            worker.work(terminate)
            self.lead.tasks.create("work", assignee="keeping")
            worker.tasks.work(terminate)
            self.assertEqual(held(), ["keeping"])
            self.assertNotEqual([a.state for a in self.lead.agents(pattern="keeping")], ["stopped"])
        worker.locks.hold("kept/").__enter__()
        worker.close()
        self.assertEqual((held(), [a.state for a in self.lead.agents(pattern="keeping")]), ([], ["stopped"]))

    def test_sigterm_is_heeded_while_the_slots_start(self):
        start = threading.Thread.start

        def signalled(thread):
            start(thread)
            if thread.name == "brokerd-slot-0":
                os.kill(os.getpid(), signal.SIGTERM)

        with mock.patch.object(threading.Thread, "start", signalled):
            self.lead.work(print)

    def test_an_interrupt_ends_promptly_and_returns_the_message(self):
        process = self.worker()
        process.send_signal(signal.SIGINT)
        self.assertNotEqual(process.wait(PATIENCE), 0)
        self.assertIn("KeyboardInterrupt", process.stderr.read())
        state = delivery(self.lead, self.first)
        self.assertEqual((state.state, state.attempts), (pb.DELIVERY_STATE_PENDING, 0))
