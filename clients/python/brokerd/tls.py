"""TLS: the settings of a client, and what is wrong if a handshake fails."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, List, Optional, Tuple

import grpc

from .errors import Invalid

_PATIENCE = 10.0  # seconds that a probe may wait

# Codes of OpenSSL's verification.
_NOT_VALID_NOW = {9, 10}
_OTHER_NAME = {62, 64}


@dataclass(frozen=True)
class TLS:
    """The files, in PEM, and the name with which a client speaks TLS.

    Without a file of authorities, the client trusts those of the system.
    """

    ca: str = ""  # the authorities that the broker's certificate may be from
    cert: str = ""  # the certificate that identifies the agent
    key: str = ""
    server_name: str = ""  # in the broker's certificate; empty: the host of the address

    def credentials(self) -> Any:
        """Returns the channel credentials of gRPC."""
        if bool(self.cert) != bool(self.key):
            raise Invalid("a certificate for TLS needs its key: give both files or neither")
        ca = self.ca or ssl.get_default_verify_paths().cafile
        return grpc.ssl_channel_credentials(_read(ca), _read(self.key), _read(self.cert))

    def options(self) -> List[Tuple[str, Any]]:
        """Returns the channel options of gRPC."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def _read(file: Optional[str]) -> Optional[bytes]:
    if not file:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise Invalid(f"read the files for TLS: {error}") from error


def problem(host: str, port: int, tls: Optional[TLS]) -> str:
    """Returns why client and broker cannot agree on TLS; empty if they can, or if nothing answers.

    It makes a connection for that, because gRPC's own errors leave the reason out.
    """
    try:
        with socket.create_connection((host, port), _PATIENCE) as raw:
            return _handshake(raw, tls, host, port)
    except OSError:
        return ""


def _handshake(raw: socket.socket, tls: Optional[TLS], host: str, port: int) -> str:
    name = (tls.server_name if tls else "") or host
    try:
        with _context(tls).wrap_socket(raw, server_hostname=name) as connection:
            if tls is None:
                return f"speaks TLS: write its address as tls://{host}:{port}"
            connection.recv(1)  # a broker refuses the client's certificate after the client's part of the handshake
            return ""
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _NOT_VALID_NOW:
            return f"has a certificate that is not valid now ({error.verify_message}): renew it, or correct the clock"
        if error.verify_code in _OTHER_NAME:
            return f"has a certificate for other names, not for {name}: BROKERD_TLS_SERVER_NAME can give the name"
        return ("has a certificate of an authority that is not trusted: BROKERD_TLS_CA names the file with its authority "
                f"({error.verify_message})")
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if "alert" in reason:
            return "" if tls is None else f"refuses the client's certificate, which BROKERD_TLS_CERT names: {reason}"
        if tls is None:
            return ""
        return "does not speak TLS; an address without tls:// and without settings for TLS reaches it, on this machine alone"


def _context(tls: Optional[TLS]) -> ssl.SSLContext:
    if tls is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context = ssl.create_default_context(cafile=tls.ca or None)
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
    context.set_alpn_protocols(["h2"])
    return context
