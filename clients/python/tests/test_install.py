"""The package, installed into an empty virtual environment."""

import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile

from .broker import PATIENCE, BrokerCase, environment
from .test_readme import ROOT, blocks

NEEDED = [name for name in ("ensurepip", "pip", "setuptools", "venv", "wheel") if importlib.util.find_spec(name) is None]


class Install(BrokerCase):
    def test_the_ten_lines_work_with_no_other_step(self):
        if NEEDED:
            self.skipTest(f"this Python has no {', '.join(NEEDED)} (Debian: python3-pip python3-venv python3-setuptools python3-wheel)")
        folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        source, python = folder / "python", folder / "venv" / "bin" / "python"
        shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))  # pip writes to it

        def run(*command):
            ran = subprocess.run(command, cwd=folder, env=environment(BROKERD_DATA=self.broker.folder, PYTHONPATH=""),
                                 capture_output=True, text=True, timeout=5 * PATIENCE)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
            return ran.stdout

        run(sys.executable, "-m", "venv", "--system-site-packages", str(folder / "venv"))
        run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps",
            "--no-build-isolation", str(source))
        self.assertEqual(run(str(python), "-c", blocks()[0]), "Done: Add login\n")
        installed = pathlib.Path(run(str(python), "-c", "import brokerd; print(brokerd.__path__[0])").strip())
        self.assertTrue(installed.is_relative_to(folder / "venv"))
        expected = {file.relative_to(ROOT / "brokerd") for file in (ROOT / "brokerd").rglob("*") if file.suffix in (".py", ".pyi", ".typed")}
        self.assertEqual({file for file in expected if not (installed / file).exists()}, set())
        version = run(str(python), "-c", "import importlib.metadata as m; print(m.version('brokerd'))").strip()
        self.assertEqual(version, (ROOT.parents[1] / "VERSION").read_text().strip())
