"""Finds the broker and the identity, as brokerctl does.

The first of these wins, for each setting by itself:

1. the arguments of the client
2. BROKERD_ADDR, BROKERD_SESSION, BROKERD_AGENT, BROKERD_INCARNATION, BROKERD_FENCE,
   BROKERD_CREDENTIAL_FILE, BROKERD_TLS_CA, BROKERD_TLS_CERT, BROKERD_TLS_KEY and BROKERD_TLS_SERVER_NAME
3. the .brokerd.yaml of the working folder or of the nearest folder above, which `brokerctl init`
   writes
4. for the address: the file `endpoint` of the data folder ($BROKERD_DATA, else
   $XDG_STATE_HOME/brokerd, else ~/.local/state/brokerd), which a running broker writes

The keys of .brokerd.yaml that say where calls go, and with which credential, count only if the user trusts
the file (`brokerctl trust`). A credential of the environment is not sent to an address of the file, nor one
of the file to an address of the caller.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .errors import Denied, Invalid, Unreachable
from .tls import TLS
from .trust import KEYS, check

FILE = ".brokerd.yaml"


@dataclass
class Folder:
    """The settings of a .brokerd.yaml."""

    path: Optional[Path] = None
    values: Dict[str, str] = field(default_factory=dict)
    given: Dict[str, str] = field(default_factory=dict)  # as the file has them: paths are relative to its folder
    agents: Dict[str, Dict[str, str]] = field(default_factory=dict)


def settings(given: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the arguments of a client: the given ones, and those of the environment and the folder."""
    folder = read(find())
    found: Dict[str, Any] = {
        "address": os.environ.get("BROKERD_ADDR"),
        "session": os.environ.get("BROKERD_SESSION") or folder.values.get("session", ""),
        "agents": folder.agents,
    }
    named = os.environ.get("BROKERD_AGENT", "")
    if "agent" not in given:
        found["agent"] = named or _agent(folder)
    if given.get("agent", named) == named:  # the numbers are those of the agent in the environment
        found.update(incarnation=_number("BROKERD_INCARNATION"), fence=_number("BROKERD_FENCE"))
    file, found["tls"] = os.environ.get("BROKERD_CREDENTIAL_FILE", ""), TLS(
        *(os.environ.get(f"BROKERD_{key.upper()}", "") for key in ("tls_ca", "tls_cert", "tls_key", "tls_server_name")))
    if not (given.get("address") or found["address"]):
        file = _of_folder(folder, given, found, file)
    if file and "credential" not in given:
        found["credential"] = credential(Path(file))
    return {**found, **given}


def _of_folder(folder: Folder, given: Mapping[str, Any], found: Dict[str, Any], file: str) -> str:
    """Takes the address and the TLS settings of the folder, and returns the file with the credential."""
    values = folder.values
    if not folder.path or not any(values.get(key) for key in KEYS):
        return file
    check(folder.path, folder.given)
    tls: TLS = found["tls"]
    proof = file or tls.cert or tls.key or given.get("credential") or given.get("tls")
    of_file = values.get("credential_file") or values.get("tls_cert") or values.get("tls_key")
    found["address"] = values.get("addr")
    if found["address"] and proof and (not of_file or given.get("credential") or given.get("tls")):
        raise Invalid(f"a credential of the environment or of the caller is not for {found['address']}, the address in "
                      f"{folder.path}: give that address with it, or put the credential into the file")
    ca = values.get("tls_ca") or tls.ca  # it is no secret
    if not found["address"] and proof:
        found["tls"] = TLS(ca, tls.cert, tls.key, tls.server_name)
        return file
    found["tls"] = TLS(ca, values.get("tls_cert", ""), values.get("tls_key", ""), tls.server_name)
    return values.get("credential_file", "")


def local() -> Tuple[str, str]:
    """Returns the address of the user's own broker, and the credential that it needs on TCP."""
    folder = data_folder()
    try:
        address = (folder / "endpoint").read_text().partition("\n")[0].strip()
    except FileNotFoundError:
        address = ""
    if not address:
        raise Unreachable(f"no broker is running at {folder} (there is no endpoint file); "
                          "start one with `brokerctl up`, or name another with BROKERD_ADDR")
    file = folder / "operator.credential"
    return address, credential(file) if not address.startswith("unix:") and file.exists() else ""


def data_folder() -> Path:
    if os.environ.get("BROKERD_DATA"):
        return Path(os.environ["BROKERD_DATA"])
    if os.environ.get("XDG_STATE_HOME"):
        return Path(os.environ["XDG_STATE_HOME"], "brokerd")
    return Path.home() / ".local" / "state" / "brokerd"


def credential(file: Path) -> str:
    """Returns the credential in a file."""
    try:
        secret = file.read_text().strip()
    except OSError as error:
        raise Denied(f"read credential: {error}") from error
    if not secret:
        raise Denied(f"read credential: {file} is empty")
    if not re.fullmatch("[A-Za-z0-9_-]{43}", secret):  # it may be a secret of another program
        raise Denied(f"read credential: the content of {file} does not have the form of a credential, so it is not sent")
    return secret


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise Invalid(f"{name} is {text!r}; it must be a whole number, 0 or above")
    return int(text or 0)


def _agent(folder: Folder) -> str:
    """Returns the agent of the folder: that of the coding agent's session, or the only one."""
    session = os.environ.get("CLAUDE_CODE_SESSION_ID")
    for name, options in folder.agents.items():
        if session and options.get("hook_session") == session:
            return name
    if len(folder.agents) > 1:
        raise Invalid(f"{folder.path} has several agents ({', '.join(sorted(folder.agents))}) and nothing chooses one: "
                      "export BROKERD_AGENT=NAME, or give agent=NAME")
    return next(iter(folder.agents), "")


def find() -> Optional[Path]:
    """Returns the .brokerd.yaml of the working folder or the nearest above.

    A file that belongs to neither the user, root, nor the owner of the working folder is passed over:
    in a folder to which all may write, it could send the calls to a foreign broker.
    """
    here = Path.cwd()
    owners = {0, os.getuid(), here.stat().st_uid}
    for folder in (here, *here.parents):
        file = folder / FILE
        try:
            if file.is_file() and file.stat().st_uid in owners:
                return file
        except PermissionError:
            continue
    return None


# A key with a value, and its indentation: the forms that `brokerctl init` writes.
_LINE = re.compile(r"^( *)([^\s:#{}]+|\"[^\"]*\"|'[^']*'):(?: +(.*?))?\s*$")
_FILES = ("credential_file", "tls_ca", "tls_cert", "tls_key")
_KEYS = {"addr", "session", "agents", "output", "start", *_FILES}


def read(file: Optional[Path]) -> Folder:
    """Reads the part of YAML that `brokerctl init` writes: keys with values, and agents with {key: value}."""
    folder = Folder(file)
    agent = ""
    for number, line in enumerate(file.read_text().splitlines() if file else [], 1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() == "---":
            continue
        parts = _LINE.match(line)
        if not parts:
            raise Invalid(f"{file}: line {number}: {line.strip()!r} is not KEY: VALUE")
        indent, key, value = len(parts[1]), _scalar(parts[2]), parts[3] or ""
        if indent == 0:
            if key not in _KEYS:
                raise Invalid(f"{file}: line {number}: unknown key {key!r}; known are {', '.join(sorted(_KEYS))}")
            agent, depth = "", 0
            if key == "agents":
                if value not in ("", "{}"):
                    folder.agents.update({name: _mapping(options) for name, options in _flow(value).items()})
            else:
                folder.values[key] = _scalar(value)
        elif not agent or indent <= depth:
            agent, depth = key, indent
            folder.agents[agent] = _mapping(value)
        else:
            folder.agents[agent][key] = _scalar(value)
    folder.given = dict(folder.values)
    for key in _FILES:
        if file and folder.values.get(key):
            folder.values[key] = str(file.parent / folder.values[key])
    return folder


def words(text: str) -> List[str]:
    """Returns the words of a text such as "go, sql"."""
    return [word.strip() for word in text.split(",") if word.strip()]


def labels(text: str) -> Dict[str, str]:
    """Returns the labels of a text such as "team=web, area=ui"."""
    return {key: value for key, _, value in (pair.partition("=") for pair in words(text))}


def _mapping(text: str) -> Dict[str, str]:
    return {key: _scalar(value) for key, value in _flow(text).items()}


def _flow(text: str) -> Dict[str, str]:
    """Splits {a: b, c: {…}} into its pairs."""
    inner = _uncommented(text).strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        return {}
    pairs = re.findall(r"\s*([^\s:,{}]+|\"[^\"]*\"|'[^']*')\s*:\s*(\{[^}]*\}|\"[^\"]*\"|'[^']*'|[^,]*)", inner[1:-1])
    return {_scalar(key): value.strip() for key, value in pairs}


def _scalar(text: str) -> str:
    quoted = re.match(r"\s*(?:\"([^\"]*)\"|'([^']*)')", text)
    return next(part for part in quoted.groups() if part is not None) if quoted else _uncommented(text).strip()


def _uncommented(text: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", text)
