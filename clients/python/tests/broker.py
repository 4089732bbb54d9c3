"""A real brokerd for tests: BROKERD_TEST_PROGRAM names the program (default: brokerd in PATH)."""

import os
import shutil
import signal
import subprocess
import tempfile
import unittest

from brokerd import Client

PROGRAM = os.environ.get("BROKERD_TEST_PROGRAM", "brokerd")

# Seconds that a test waits for an event that comes at once on an idle machine.
PATIENCE = 60.0


class Broker:
    """A daemon on its own data folder. It does not outlive the tests: its standard input ends with them."""

    def __init__(self, *flags):
        self.folder = tempfile.mkdtemp(prefix="brokerd-")
        self._flags = flags
        self._process = None
        self.start()

    @property
    def address(self):
        return f"unix://{self.folder}/brokerd.sock"

    def start(self):
        self._process = subprocess.Popen(
            [PROGRAM, "serve", "--data", self.folder, "--stop-on-stdin-eof", "--sync", "normal", "--log-level", "warn",
             "--log-format", "console", *self._flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment())
        line = self._process.stdout.readline().decode()
        if "listening on" not in line:
            self._wait()
            raise RuntimeError(f"brokerd did not start: {line}")
        #: The line with every address that it listens on.
        self.banner = line

    def freeze(self):
        """Stops the process, and returns when none of its threads runs."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def thaw(self):
        self._process.send_signal(signal.SIGCONT)

    def kill(self):
        self._process.kill()
        self._wait()

    def stop(self):
        self.thaw()  # it may be frozen
        self._process.terminate()
        self._wait()

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder)

    def _wait(self):
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def environment(**values):
    """Returns the environment without settings of a daemon or a client, with values."""
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith("BROKERD_") and key not in ("XDG_STATE_HOME", "CLAUDE_CODE_SESSION_ID")}
    return {**clean, **values}


class BrokerCase(unittest.TestCase):
    """Tests on a broker that they share. Each test uses its own agents."""

    @classmethod
    def setUpClass(cls):
        cls.broker = Broker()
        cls.addClassCleanup(cls.broker.remove)

    def client(self, agent="", **options):
        client = Client(**{"address": self.broker.address, "agent": agent, "timeout": PATIENCE, **options})
        self.addCleanup(client.close)
        return client

    def agent(self, name, role="", **options):
        client = self.client(name, **options)
        client.register(role)
        return client
