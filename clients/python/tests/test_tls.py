"""TLS and client certificates, over a real broker with the certificates of `brokerctl credential tls`."""

import asyncio
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import unittest.mock

from brokerd import TLS, Client, Denied, Invalid, Unreachable, aio

from .broker import PATIENCE, PROGRAM, Broker, environment
from .test_environment import trust


class Secured(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.ours, cls.other = f"{folder.name}/ours", f"{folder.name}/other"
        for certificates in (cls.ours, cls.other):
            subprocess.run([os.path.join(os.path.dirname(PROGRAM), "brokerctl"), "credential", "tls", certificates, "builder-1",
                            "--host", "127.0.0.1"], check=True, env=environment(), stdout=subprocess.DEVNULL)
        cls.broker = Broker("--listen", "127.0.0.1:0", "--tls-cert", f"{cls.ours}/server.pem",
                            "--tls-key", f"{cls.ours}/server.key", "--tls-client-ca", f"{cls.ours}/ca.pem")
        cls.addClassCleanup(cls.broker.remove)
        cls.where = re.search(r"tls://(127\.0\.0\.1:\d+)", cls.broker.banner)[1]
        with open(f"{cls.broker.folder}/operator.credential") as file:
            cls.credential = file.read().strip()

    def own(self, folder=None, **settings):
        agent = f"{folder or self.ours}/agents/default/builder-1"
        return TLS(**{"ca": f"{self.ours}/ca.pem", "cert": f"{agent}.pem", "key": f"{agent}.key", **settings})

    def client(self, tls, address="", **options):
        client = Client(address or f"tls://{self.where}", tls=tls, timeout=PATIENCE, **options)
        self.addCleanup(client.close)
        return client

    def test_with_a_credential(self):
        self.client(TLS(ca=f"{self.ours}/ca.pem"), credential=self.credential, agent="critic-1").register()
        self.client(TLS(ca=f"{self.ours}/ca.pem"), address=self.where, credential=self.credential, agent="critic-2").register()

    def test_a_certificate_identifies_the_agent(self):
        self.assertEqual(self.client(self.own()).register().name, "builder-1")
        with self.assertRaises(Denied) as raised:
            self.client(self.own(), agent="critic-1").register()
        self.assertEqual(raised.exception.reason, "CREDENTIAL_BOUND")
        with self.assertRaises(Denied) as raised:
            self.client(self.own(), credential=self.credential).register()
        self.assertEqual(raised.exception.reason, "CREDENTIAL_MISMATCH")

    def test_asyncio(self):
        async def register():
            async with aio.Client(f"tls://{self.where}", tls=self.own(), timeout=PATIENCE) as client:
                return await client.register()
        self.assertEqual(asyncio.run(register()).name, "builder-1")

    def test_problems_are_named(self):
        plain = Broker("--listen", "127.0.0.1:0")
        self.addCleanup(plain.remove)
        address = re.search(r"127\.0\.0\.1:\d+", plain.banner)[0]
        for problem, tls, where in (
            ("an authority that is not trusted", TLS(ca=f"{self.other}/ca.pem"), ""),
            ("a certificate for other names, not for broker.example", self.own(server_name="broker.example"), ""),
            ("refuses the client's certificate", self.own(self.other), ""),
            (f"speaks TLS: write its address as tls://{self.where}", TLS(), self.where),
            ("does not speak TLS", self.own(), f"tls://{address}"),
        ):
            with self.subTest(problem), self.assertRaisesRegex(Unreachable, re.escape(problem)):
                self.client(tls, where).agents()
        for problem, tls, where in (
            ("needs TLS: write tls://192.0.2.1:7421", TLS(), "192.0.2.1:7421"),
            ("none.pem", TLS(ca="none.pem"), ""),
            ("give both files or neither", TLS(cert=f"{self.ours}/server.pem"), ""),
        ):
            with self.subTest(problem), self.assertRaisesRegex(Invalid, re.escape(problem)):
                self.client(tls, where)

    def test_the_environment_and_the_folder_name_the_files(self):
        agent = f"{self.ours}/agents/default/builder-1"
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(os.path.dirname(self.ours))
        with open(".brokerd.yaml", "w") as file:
            file.write(f"addr: {self.where}\ntls_ca: ours/ca.pem\ntls_cert: {agent}.pem\ntls_key: {agent}.key\n")
        home = os.path.realpath(".")
        trust(pathlib.Path(home, ".brokerd.yaml"), home)
        with unittest.mock.patch.dict(os.environ, environment(HOME=home), clear=True):
            client = Client.from_env(timeout=PATIENCE)
        self.addCleanup(client.close)
        self.assertEqual(client.register().name, "builder-1")
