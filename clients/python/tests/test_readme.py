"""The README and the examples: every program in them runs."""

import ast
import pathlib
import re
import signal
import subprocess
import sys

from brokerd.v1 import message_pb2 as pb

from .broker import PATIENCE, BrokerCase, environment

ROOT = pathlib.Path(__file__).parents[1]


def blocks():
    """Returns the Python programs of the README."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


class Readme(BrokerCase):
    def test_the_ten_lines_work(self):
        lines = blocks()[0]
        self.assertEqual(len(lines.splitlines()), 10)
        ran = subprocess.run([sys.executable, "-c", lines], env=environment(BROKERD_DATA=self.broker.folder, PYTHONPATH=str(ROOT)),
                             capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual((ran.stdout, ran.stderr, ran.returncode), ("Done: Add login\n", "", 0))

    def test_the_other_programs_are_cut_from_the_examples(self):
        examples = [file.read_text() for file in (ROOT / "examples").glob("*.py")]
        for block in blocks()[1:]:
            ast.parse(block)
            self.assertTrue(any(block in example for example in examples), block)


class Examples(BrokerCase):
    def start(self, name, agent):
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / name)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(BROKERD_ADDR=self.broker.address, BROKERD_AGENT=agent, PYTHONPATH=str(ROOT)))
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def ends(self, process, out=""):
        process.send_signal(signal.SIGTERM)
        self.assertEqual((*process.communicate(timeout=PATIENCE), process.returncode), (out, "", 0))

    def test_worker(self):
        lead = self.agent("lead")
        builder = self.start("worker.py", "py-builder")
        next(e for e in lead.events.follow(after=0, types=["agent.registered"]) if e.source == "py-builder")
        reply = lead.ask("role:builder", payload={"name": "login"}, timeout=PATIENCE)
        self.assertEqual(reply.text, "login is built")
        lead.send("role:builder", payload={"name": "impossible"})
        next(lead.events.follow(after=0, types=["message.dead"]))
        self.ends(builder)
        dead = self.client().stubs.messages.ListDeadLetters(pb.ListDeadLettersRequest())
        self.assertEqual(dead.items[0].delivery.history[0].error, "no such repository")

    def test_member(self):
        lead = self.agent("leader")
        tasks = [lead.tasks.create(f"feature {n}", role="coder").id for n in range(3)]
        member = self.start("member.py", "py-member")
        lead.tasks.wait(*tasks, timeout=PATIENCE)
        self.assertEqual({task.holder for task in lead.tasks.list(states=["done"])}, {"py-member"})
        self.assertEqual([entry.value for entry in lead.state.list("results/").entries], [{"title": f"feature {n}"} for n in range(3)])
        reply = lead.ask("py-member", "How far are you?", timeout=PATIENCE)
        self.assertEqual(reply.text, "I am py-member, and I have finished 3 tasks")
        self.ends(member)

    def test_rename(self):
        out, errors = self.start("rename.py", "py-renamer").communicate(timeout=PATIENCE)
        self.assertEqual((out, errors), ("renaming\n", ""))
        self.assertEqual(self.client().state.get("module").value, "example.com/new")


class Packaging(BrokerCase):
    def test_every_module_compiles_for_python_3_9(self):
        for file in ROOT.glob("brokerd/**/*.py"):
            ast.parse(file.read_text(), str(file), feature_version=(3, 9))
