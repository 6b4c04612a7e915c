"""A certificate authority that lives as long as a test, and certificates for addresses of this machine.

Out: PEM text. Used by the API server and by LocalKubelet's own small server for logs.
"""

import datetime
import pathlib
import ssl
from dataclasses import dataclass

from springtide.platforms.agent import credentials
from springtide.rpc.transport import tls

NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
LIFE = datetime.timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key, and who signed it."""

    ca: str
    certificate: str
    key: str

    def server_context(self, folder: pathlib.Path) -> ssl.SSLContext:
        """For a server; written to `folder`, since Python reads certificates from files only."""
        files = folder / "tls.crt", folder / "tls.key"
        files[0].write_text(self.certificate)
        files[1].touch(0o600)
        files[1].write_text(self.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        return context


def make(address: str = "127.0.0.1") -> Certificate:
    """A new authority, and a certificate of it for an address and the names of an API server."""
    now = datetime.datetime.now(datetime.UTC)
    made = credentials.make("testing", at=now, life=LIFE, roles=("kubernetes",), hosts=(address, *NAMES))
    own = {name: content.decode() for name, content in credentials.of_role(made, "kubernetes").items()}
    return Certificate(own[tls.AUTHORITY], own[tls.CERTIFICATE], own[tls.KEY])
