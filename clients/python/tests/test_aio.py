"""The asyncio client: the same operations, workers and holds as coroutines."""

import asyncio
import collections
import os
import signal
import subprocess
import sys
import unittest

from brokerd import Conflict, Lost, NotFound, Precondition, Reject, Unreachable, aio
from brokerd.v1 import lock_pb2, token_pb2
from brokerd.v1 import message_pb2 as pb

from .broker import PATIENCE, Broker, environment


class Case(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.broker = Broker()
        self.addCleanup(self.broker.remove)

    async def client(self, agent, role="", **options):
        client = aio.Client(**{"address": self.broker.address, "agent": agent, "timeout": PATIENCE, **options})
        self.addAsyncCleanup(client.close)
        if agent:
            await client.register(role)
        return client

    async def delivery(self, client, message):
        return (await client.stubs.messages.GetMessage(pb.GetMessageRequest(id=message.id))).deliveries[0]


class Operations(Case):
    async def test_messages(self):
        lead, builder = await self.client("lead"), await self.client("builder-1", "builder")
        asked = asyncio.ensure_future(lead.ask("role:builder", "Ready?", timeout=PATIENCE))
        claim = await builder.claim(wait=PATIENCE)
        await builder.reply(claim, "Yes", payload={"in": 5})
        reply = await asked
        self.assertEqual((reply.text, reply.payload, reply.sender), ("Yes", {"in": 5}, "builder-1"))
        self.assertIsNone(await builder.claim())

    async def test_state_events_tasks_decisions_and_artifacts(self):
        lead, critic = await self.client("lead"), await self.client("critic", "critic")
        entry = await lead.state.put("plan", {"steps": 3})
        self.assertEqual((await critic.state.get("plan")).value, {"steps": 3})
        with self.assertRaises(Conflict):
            await critic.state.put("plan", 1, if_revision=entry.revision - 1)
        await lead.events.publish("plan.made", "made")
        self.assertEqual([e.summary for e in await lead.events.list(types=["plan.made"])], ["made"])
        task = await lead.tasks.create("Review")
        claim = await critic.tasks.claim(task.id)
        await critic.tasks.complete(claim, "fine")
        self.assertEqual((await lead.tasks.get(task.id)).result, "fine")
        decision = await lead.decisions.open("review", "critic", scope="plan", body="three steps")
        await critic.decisions.decide(decision.id, "approve", feedback=["good"])
        self.assertEqual((await lead.decisions.wait(decision.id, timeout=PATIENCE)).verdict, "approve")
        await lead.artifacts.upload("plan.md", b"# Plan" * 50_000)
        self.assertEqual(await critic.artifacts.download("plan.md"), b"# Plan" * 50_000)

    async def test_errors(self):
        lead = await self.client("lead")
        with self.assertRaises(NotFound):
            await lead.send("nobody", "x")
        with self.assertRaises(Unreachable):
            await aio.Client("unix:///nonexistent/brokerd.sock").agents()

    async def test_cancelling_a_task_cancels_its_call(self):
        lead = await self.client("lead")
        waiting = asyncio.ensure_future(lead.claim(wait=3600))
        await lead.send("lead", "a sign that the loop has begun the call", not_before=3600)
        waiting.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await waiting

    async def test_follow_continues_over_a_restart(self):
        lead = await self.client("lead")
        mail, seen = lead.follow(), []
        for round in range(2):
            for n in range(5):
                await lead.send("lead", f"{round}-{n}")
            while len(seen) < 5 * (round + 1):
                seen.append((await mail.__anext__()).text)
            self.broker.kill()
            self.broker.start()
        await mail.aclose()
        self.assertEqual(seen, [f"{round}-{n}" for round in range(2) for n in range(5)])


class Work(Case):
    async def test_every_message_is_finished_once_over_a_kill(self):
        lead, worker = await self.client("lead"), await self.client("worker")
        sent = [await lead.send("worker", f"message {n}") for n in range(40)]
        runs, stop = collections.Counter(), asyncio.Event()
        in_flight, restarted = asyncio.Event(), asyncio.Event()

        async def handle(claim):
            runs[claim.id] += 1
            nth = sum(runs.values())
            if nth == 15:
                in_flight.set()
            if nth >= 15:
                await restarted.wait()
            if nth == len(sent):
                stop.set()
            return f"done {claim.text}"

        working = asyncio.ensure_future(worker.work(handle, concurrency=4, stop=stop))
        await in_flight.wait()
        self.broker.kill()
        self.broker.start()
        restarted.set()
        await working
        self.assertEqual(runs, {message.id: 1 for message in sent})
        for message in sent:
            settled = await self.delivery(lead, message)
            self.assertEqual((settled.state, settled.attempts), (pb.DELIVERY_STATE_ACKED, 0))
        replies = collections.Counter(reply.text for reply in await lead.inbox())
        self.assertEqual(replies, {f"done message {n}": 1 for n in range(40)})

    async def test_a_lost_claim_cancels_the_handler(self):
        lead, worker = await self.client("lead"), await self.client("worker")
        await lead.send("worker", "x")
        stop, cancelled = asyncio.Event(), []

        async def handle(claim):
            await worker.ack(claim)  # it is settled elsewhere
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.append(claim.lost.is_set())
                stop.set()
                raise

        await asyncio.wait_for(worker.work(handle, claim_for=1, stop=stop), PATIENCE)
        self.assertEqual(cancelled, [True])

    async def test_cancelling_the_worker_returns_the_message(self):
        lead, worker = await self.client("lead"), await self.client("worker")
        sent = await lead.send("worker", "x")
        begun = asyncio.Event()

        async def handle(claim):
            begun.set()
            await asyncio.sleep(3600)

        working = asyncio.ensure_future(worker.work(handle))
        await begun.wait()
        working.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await working
        settled = await self.delivery(lead, sent)
        self.assertEqual((settled.state, settled.attempts), (pb.DELIVERY_STATE_PENDING, 0))

    async def test_tasks_and_their_failures(self):
        lead, worker = await self.client("lead"), await self.client("worker", "worker")
        good, bad = [(await lead.tasks.create(title, role="worker")).id for title in ("good", "bad")]
        stop = asyncio.Event()

        async def handle(claim):
            if claim.title == "bad":
                raise Reject("never")
            return {"title": claim.title}

        working = asyncio.ensure_future(worker.tasks.work(handle, stop=stop))
        await lead.tasks.wait(good, timeout=PATIENCE)
        await lead.tasks.wait(bad, timeout=PATIENCE)
        stop.set()
        await working
        self.assertEqual((await lead.tasks.get(good)).result, '{"title":"good"}')
        self.assertEqual((await lead.tasks.get(bad)).error, "never")

    async def test_an_agent_that_is_not_registered_ends_the_worker(self):
        client = aio.Client(self.broker.address, agent="stranger")
        self.addAsyncCleanup(client.close)
        with self.assertRaises(Precondition):
            await client.work(None)

    async def test_sigterm_stops_a_worker_that_looks_for_the_tasks_it_held(self):
        worker = await self.client("worker", "worker")
        list_tasks = worker.stubs.tasks.ListTasks

        class Signalled:
            streams = False

            def __call__(self, *args, **kwargs):
                os.kill(os.getpid(), signal.SIGTERM)
                return list_tasks(*args, **kwargs)

        worker.stubs.tasks.ListTasks = Signalled()
        await asyncio.wait_for(asyncio.gather(worker.work(None), worker.tasks.work(None)), PATIENCE)

    async def test_sigterm_stops_both_workers_and_lets_the_handler_finish(self):
        lead = await self.client("lead")
        await lead.as_agent("signalled").register(lease=3600)
        sent = await lead.send("signalled", "x")
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, self.broker.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "working\n")
        process.send_signal(signal.SIGTERM)
        stopping = sorted(process.stdout.readline() for _ in range(2))
        self.assertEqual(stopping, [f"the worker stops, and waits for {n} handlers\n" for n in (0, 1)])
        out, errors = process.communicate("\n", timeout=PATIENCE)
        self.assertEqual((out, errors, process.returncode), ("drained\n", "", 0))
        self.assertEqual((await self.delivery(lead, sent)).state, pb.DELIVERY_STATE_ACKED)
        self.assertEqual([a.state for a in await lead.agents(pattern="signalled")], ["stopped"])

    async def test_the_agent_holds_its_locks_after_work_until_the_client_is_closed(self):
        async def terminate(claim):
            os.kill(os.getpid(), signal.SIGTERM)

        async def held():
            return [lock.agent for lock in (await lead.stubs.locks.ListLocks(lock_pb2.ListLocksRequest())).locks]

        lead, worker = await self.client("lead"), await self.client("worker")
        await worker.as_agent("worker-2").register()
        await lead.send("worker", "work")
        async with worker.locks.hold("src/"):
            await asyncio.gather(worker.work(terminate), worker.tasks.work(terminate))
            self.assertEqual(await held(), ["worker"])
            self.assertNotIn("stopped", [a.state for a in await lead.agents()])
        await worker.locks.hold("src/").__aenter__()
        await worker.close()
        self.assertEqual((await held(), [a.state for a in await lead.agents(pattern="worker*")]), ([], ["stopped", "stopped"]))


WORKER = """
import asyncio, logging, sys
from brokerd import aio

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")

async def handle(claim):
    print("working", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

async def main():
    async with aio.Client(sys.argv[1], agent="signalled") as client:
        await client.register(lease=3600)
        await asyncio.gather(client.work(handle), client.tasks.work(handle))
    print("drained")

asyncio.run(main())
"""


class Holds(Case):
    async def held(self, client, path):
        return [lock.agent for lock in (await client.stubs.locks.ListLocks(lock_pb2.ListLocksRequest(path=path))).locks]

    async def test_a_lock_is_held_in_the_block(self):
        one, other = await self.client("one"), await self.client("other")
        async with one.locks.hold("src/") as hold:
            self.assertGreater(hold.fence, 0)
            await hold.client.state.put("fenced", 1)
            with self.assertRaises(Conflict):
                async with other.locks.hold("src/a.go", wait=0):
                    self.fail("two agents hold the same file")
        self.assertEqual(await self.held(one, "src/"), [])

    async def test_a_frozen_daemon_cancels_the_block(self):
        one = await self.client("one")
        cancelled = []
        with self.assertRaises(Lost) as raised:
            async with one.locks.hold("src/", max_hold=4):
                self.broker.freeze()
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    cancelled.append(True)
                    raise
        self.broker.thaw()
        self.assertEqual((cancelled, raised.exception.reason), ([True], "NOT_EXTENDED"))
        await asyncio.sleep(0)  # the task itself is not cancelled
        if sys.version_info >= (3, 11):
            self.assertEqual(asyncio.current_task().cancelling(), 0)

    async def test_a_revoked_token_cancels_the_block(self):
        one, operator = await self.client("one"), await self.client("")
        with self.assertRaises(Lost):
            async with one.tokens.hold("deploy", "staging", max_hold=4):
                await operator.stubs.tokens.RevokeToken(
                    token_pb2.RevokeTokenRequest(type="deploy", scope="staging", reason="test"))
                await asyncio.sleep(3600)

    async def test_a_cancellation_by_another_task_stays_one(self):
        one = await self.client("one")
        begun = asyncio.Event()

        async def hold():
            async with one.locks.hold("src/"):
                begun.set()
                await asyncio.sleep(3600)

        holding = asyncio.ensure_future(hold())
        await begun.wait()
        holding.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await holding
        self.assertEqual(await self.held(one, "src/"), [])
