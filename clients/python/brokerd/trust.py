"""Says whether the user trusts a .brokerd.yaml, as `brokerctl trust` noted it.

Another person may have written the file, such as the author of a repository. Its keys that say where
calls go and what proves who calls count only if the user trusts the file with these values.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Mapping

from .errors import Invalid

KEYS = ("addr", "tls_ca", "tls_cert", "tls_key", "credential_file")


def connection_sum(values: Mapping[str, str]) -> str:
    """Returns the SHA-256 of the values of KEYS, as brokerctl computes it."""
    digest = hashlib.sha256()
    for key in KEYS:
        value = values.get(key, "").encode()
        digest.update(b"%s %d %s\n" % (key.encode(), len(value), value))
    return digest.hexdigest()


def entry(file: Path) -> Path:
    """Returns the path of the note about a file."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    root = Path(config) if os.path.isabs(config) else Path.home() / ".config"
    return root / "brokerd" / "trusted" / hashlib.sha256(os.fsencode(_real(file))).hexdigest()


def check(file: Path, values: Mapping[str, str]) -> None:
    """Raises Invalid unless the user trusts the file with these values, and no symbolic link leads a file out of the folder."""
    note = entry(file)
    try:
        with note.open() as opened:
            status = os.fstat(opened.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                raise Invalid(f"{note} may be from another user; remove it")
            trusted = json.load(opened)
    except FileNotFoundError:
        trusted = {}
    if trusted.get("file") != _real(file) or trusted.get("sha256") != connection_sum(values):
        raise Invalid(f"{file} says where calls go or with which credential, and you have not trusted it: "
                      "read it, then run `brokerctl trust`")
    folder = os.path.realpath(file.parent)
    for key in KEYS[1:]:
        named = os.path.join(folder, values.get(key, ""))
        if _is_in(folder, os.path.normpath(named)) and not _is_in(folder, os.path.realpath(named)):
            # The user did not see this target if the link was created after `brokerctl trust`.
            raise Invalid(f"{file}: a symbolic link leads {key} out of the folder: name its target in the file, and run `brokerctl trust`")


def _is_in(folder: str, file: str) -> bool:
    return os.path.commonpath([folder, file]) == folder


def _real(file: Path) -> str:
    return os.path.join(os.path.realpath(file.parent), file.name)
