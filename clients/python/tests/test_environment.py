"""Client.from_env: every way to name the broker, the session and the agent."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import tempfile
import unittest
from unittest import mock

from brokerd import Client, Denied, Invalid, Unreachable

from brokerd.environment import read
from brokerd.trust import connection_sum, entry

from .broker import Broker, environment

SECRET = "k" * 42 + "A"
SUM = "9f3f4d2232e00b526b3632cfa9da1779ff72a995c77aa23b4a76aa7402f0621a"  # of brokerctl


def trust(file, home):
    """Does what `brokerctl trust --yes` does."""
    given = read(file).given
    with mock.patch.dict(os.environ, environment(HOME=str(home)), clear=True):
        note = entry(file.resolve())
    note.parent.mkdir(parents=True, exist_ok=True)
    note.unlink(missing_ok=True)
    with open(os.open(note, os.O_WRONLY | os.O_CREAT, 0o600), "w") as opened:
        json.dump({"file": str(file.resolve()), "sha256": connection_sum(given)}, opened)


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name).resolve()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)

    def found(self, variables=None, **overrides):
        """Returns the client that an environment with these variables gives."""
        with mock.patch.dict(os.environ, environment(HOME=str(self.folder), **(variables or {})), clear=True):
            client = Client.from_env(**overrides)
        self.addCleanup(client.close)
        return client

    def seen(self, *args, **overrides):
        client = self.found(*args, **overrides)
        return client.address, client.identity.session, client.identity.agent


class Described(Case):
    def test_register_takes_what_the_file_says_of_the_agent(self):
        broker = Broker()
        self.addCleanup(broker.remove)
        (self.folder / ".brokerd.yaml").write_text(
            'agents:\n  builder-1: {role: builder, capabilities: "go, sql", labels: "team=web, area=ui"}\n')
        builder = self.found({"BROKERD_ADDR": broker.address})
        first = builder.register()
        self.assertEqual((first.role, list(first.capabilities), dict(first.labels)),
                         ("builder", ["go", "sql"], {"team": "web", "area": "ui"}))
        second = builder.register(role="critic", labels={"area": "api"})
        self.assertEqual((second.role, list(second.capabilities), dict(second.labels)),
                         ("critic", ["go", "sql"], {"team": "web", "area": "api"}))


class Variables(Case):
    ADDRESS = {"BROKERD_ADDR": "unix:///run/a.sock"}

    def test_each_variable(self):
        client = self.found({**self.ADDRESS, "BROKERD_SESSION": "website", "BROKERD_AGENT": "builder-1",
                             "BROKERD_INCARNATION": "3", "BROKERD_FENCE": "17"})
        self.assertEqual(client.address, "unix:///run/a.sock")
        self.assertEqual(tuple(vars(client.identity).values()), ("website", "builder-1", 3, 17))

    def test_arguments_win(self):
        variables = {**self.ADDRESS, "BROKERD_SESSION": "website", "BROKERD_AGENT": "builder-1", "BROKERD_FENCE": "17"}
        self.assertEqual(self.seen(variables, address="unix:///run/b.sock", session="other", agent="builder-2"),
                         ("unix:///run/b.sock", "other", "builder-2"))

    def test_incarnation_and_fence_are_those_of_the_agent_in_the_environment(self):
        variables = {**self.ADDRESS, "BROKERD_AGENT": "builder-1", "BROKERD_FENCE": "17"}
        self.assertEqual(self.found(variables, agent="builder-1").identity.fence, 17)
        self.assertEqual(self.found(variables, agent="builder-2").identity.fence, 0)

    def test_a_number_is_a_whole_number(self):
        with self.assertRaisesRegex(Invalid, "BROKERD_FENCE is 'x'"):
            self.found({**self.ADDRESS, "BROKERD_FENCE": "x"})

    def test_an_unreadable_credential_file(self):
        with self.assertRaisesRegex(Denied, "missing.credential"):
            self.found({**self.ADDRESS, "BROKERD_CREDENTIAL_FILE": str(self.folder / "missing.credential")})


class DataFolder(Case):
    def test_each_place_of_the_data_folder(self):
        for variable, place in (("BROKERD_DATA", ""), ("XDG_STATE_HOME", "brokerd"), ("", ".local/state/brokerd")):
            with self.subTest(variable or "HOME"), tempfile.TemporaryDirectory() as root:
                base = self.folder if not variable else pathlib.Path(root)
                (base / place).mkdir(parents=True, exist_ok=True)
                (base / place / "endpoint").write_text(f"unix:///run/{variable}.sock\n")
                self.assertEqual(self.found({variable: root} if variable else {}).address, f"unix:///run/{variable}.sock")

    def test_without_a_broker(self):
        with self.assertRaisesRegex(Unreachable, "no broker is running at .*; start one with `brokerctl up`"):
            self.found()


class FolderFile(Case):
    def write(self, text, folder=".", trusted=True):
        file = pathlib.Path(folder, ".brokerd.yaml")
        file.write_text(text)
        if trusted:
            with contextlib.suppress(Invalid):
                trust(file, self.folder)

    def test_what_brokerctl_init_writes(self):
        self.write("# Read by brokerctl in this folder and below; flags and environment win.\n"
                   "addr: unix:///run/a.sock\nsession: website\nagents:\n  builder-1: {role: builder}\n")
        os.mkdir("deep")
        os.chdir("deep")
        self.assertEqual(self.seen(), ("unix:///run/a.sock", "website", "builder-1"))
        self.assertEqual(self.seen({"BROKERD_SESSION": "other", "BROKERD_AGENT": "critic-1"}),
                         ("unix:///run/a.sock", "other", "critic-1"))

    def test_other_forms(self):
        self.write('addr: "unix:///run/a b.sock"  # quoted\nsession: \'web\'\nagents:\n  "builder-1":\n    role: builder\n'
                   "    hook_session: abc\n")
        self.assertEqual(self.seen(), ("unix:///run/a b.sock", "web", "builder-1"))
        self.write("addr: unix:///run/a.sock\nagents: {builder-1: {role: builder}}\n")
        self.assertEqual(self.seen(), ("unix:///run/a.sock", "", "builder-1"))
        self.write("addr: unix:///run/a.sock\nagents: {}\n")
        self.assertEqual(self.seen(), ("unix:///run/a.sock", "", ""))

    def test_several_agents(self):
        self.write("addr: unix:///run/a.sock\nagents:\n  builder-1: {hook_session: one}\n  critic-1: {role: critic, hook_session: two}\n")
        with self.assertRaisesRegex(Invalid, "has several agents .builder-1, critic-1. and nothing chooses one"):
            self.found()
        self.assertEqual(self.seen({"CLAUDE_CODE_SESSION_ID": "two"})[2], "critic-1")
        self.assertEqual(self.seen(agent="builder-1")[2], "builder-1")

    def test_a_relative_credential_file_is_in_the_folder_of_the_file(self):
        (self.folder / "secret").write_text(SECRET + "\n")
        self.write("addr: 127.0.0.1:7421\ncredential_file: secret\n")
        os.mkdir("deep")
        os.chdir("deep")
        self.assertEqual(self.found()._calls.link.credential, SECRET)

    def test_a_file_counts_only_if_the_user_trusts_its_connection(self):
        text = "addr: unix:///run/a.sock\nsession: website\nagents:\n  builder-1: {role: builder}\n"
        self.write(text, trusted=False)
        with self.assertRaisesRegex(Invalid, "you have not trusted it: read it, then run `brokerctl trust`"):
            self.found()
        self.assertEqual(self.seen({"BROKERD_ADDR": "unix:///run/b.sock"}), ("unix:///run/b.sock", "website", "builder-1"))
        self.write(text)
        self.assertEqual(self.seen()[0], "unix:///run/a.sock")
        for change in (text.replace("run/a", "run/b"), text + "credential_file: secret\n", text + "tls_ca: ca.pem\n"):
            self.write(change, trusted=False)
            with self.assertRaisesRegex(Invalid, "brokerctl trust"):
                self.found()
        self.write(text)
        note = next((self.folder / ".config/brokerd/trusted").iterdir())
        note.chmod(0o666)
        with self.assertRaisesRegex(Invalid, "may be from another user"):
            self.found()

    def test_a_link_out_of_the_folder_is_not_followed(self):
        (self.folder / "outside").write_text(SECRET + "\n")
        os.makedirs("project/keys")
        secret = self.folder / "project/keys/secret"
        secret.write_text(SECRET + "\n")
        self.write("addr: 127.0.0.1:7421\ncredential_file: keys/secret\n", folder="project")
        os.chdir("project")
        self.assertEqual(self.found()._calls.link.credential, SECRET)
        secret.unlink()
        secret.symlink_to(self.folder / "outside")
        with self.assertRaisesRegex(Invalid, "a symbolic link leads credential_file out of the folder"):
            self.found()

    def test_a_credential_of_one_source_is_not_for_the_address_of_the_other(self):
        (self.folder / "secret").write_text(SECRET + "\n")
        variables = {"BROKERD_CREDENTIAL_FILE": str(self.folder / "secret")}
        self.write("addr: 127.0.0.1:7421\n")
        with self.assertRaisesRegex(Invalid, "is not for 127.0.0.1:7421, the address in"):
            self.found(variables)
        self.write("addr: 127.0.0.1:7421\ncredential_file: secret\n")
        self.assertEqual(self.found({"BROKERD_ADDR": "127.0.0.1:7422"})._calls.link.credential, "")

    def test_a_secret_of_another_program_is_not_sent(self):
        (self.folder / "secret").write_text("ghp_ONE_LINE\n")
        with self.assertRaises(Denied) as raised:
            self.found({"BROKERD_ADDR": "127.0.0.1:7421", "BROKERD_CREDENTIAL_FILE": str(self.folder / "secret")})
        self.assertIn("does not have the form of a credential", str(raised.exception))
        self.assertNotIn("ghp", str(raised.exception))

    def test_the_sum_is_that_of_brokerctl(self):
        self.assertEqual(connection_sum({"addr": "tls://broker.example:7421", "credential_file": "geheim/schlüssel"}), SUM)

    def test_errors_name_the_line(self):
        for text, problem in (("adress: x\n", "line 1: unknown key 'adress'"), ("addr\n", "line 1: 'addr' is not KEY: VALUE")):
            with self.subTest(text):
                self.write(text)
                with self.assertRaisesRegex(Invalid, problem):
                    self.found()

    def test_the_file_of_another_user_is_passed_over(self):
        if os.getuid() != 0:
            self.skipTest("only root can give a file away")
        self.write("addr: unix:///run/foreign.sock\n")
        os.chown(".brokerd.yaml", 65534, 65534)
        os.mkdir("own")
        os.chdir("own")
        with self.assertRaises(Unreachable):
            self.found()


class RealBroker(Case):
    def test_the_data_folder_leads_to_the_broker(self):
        broker = Broker()
        self.addCleanup(broker.remove)
        self.assertEqual(self.found({"BROKERD_DATA": broker.folder}, agent="found").register("x").name, "found")

    def test_over_tcp_with_the_credential(self):
        broker = Broker("--listen", "127.0.0.1:0")
        self.addCleanup(broker.remove)
        address = re.search(r"127\.0\.0\.1:\d+", broker.banner)[0]
        shutil.copy(f"{broker.folder}/operator.credential", self.folder)
        (self.folder / "endpoint").write_text(address + "\n")
        client = self.found({"BROKERD_DATA": str(self.folder)}, agent="tcp")
        self.assertEqual(client.address, address)
        client.register()
        with self.assertRaises(Denied) as raised:
            self.found(address=client.address, agent="tcp").agents()
        self.assertEqual(raised.exception.reason, "CREDENTIAL_REQUIRED")
        file = {"BROKERD_CREDENTIAL_FILE": f"{broker.folder}/operator.credential"}
        self.assertEqual(len(self.found(file, address=client.address, agent="tcp").agents()), 1)
