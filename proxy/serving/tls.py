"""TLS at the public port: a certificate that may be renewed while connections are open."""

from __future__ import annotations

import logging
import ssl

from proxy.serving.watch import FileWatch

log = logging.getLogger("derender")

LOOK_SECONDS = 5.0


class TLS:
    """``context`` serves ``certfile`` and its key; with ``ca_certs``, only to clients that show a certificate of these.

    Raises ValueError, which names the flag at fault, where the files are none, or do not go together.
    """

    def __init__(self, certfile: str, keyfile: str | None = None, ca_certs: str | None = None) -> None:
        self._files = (certfile, keyfile)
        # made before the files are read: a worker begins with what its parent read, which may be long ago
        self._watches = [FileWatch(path, self._renew, LOOK_SECONDS) for path in self._files if path is not None]
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for flag, path in (("certfile", certfile), ("keyfile", keyfile), ("ca-certs", ca_certs)):
            try:
                if path is not None:
                    open(path, "rb").close()
            except OSError as error:
                raise ValueError(f"--ssl-{flag}: cannot read {path}: {error.strerror}") from None
        try:
            self._load()
        except ssl.SSLError as error:
            raise ValueError(
                f"--ssl-certfile: {certfile} and {keyfile or 'the key in it'} are no certificate chain and its "
                f"unencrypted key ({error.reason or 'unreadable'})"
            ) from None
        if ca_certs is not None:
            try:
                self.context.load_verify_locations(ca_certs)
            except ssl.SSLError as error:
                raise ValueError(f"--ssl-ca-certs: {ca_certs} has no certificates ({error.reason})") from None
            self.context.verify_mode = ssl.CERT_REQUIRED

    def _load(self) -> None:
        # One that does not fit its key would be served all the same, so another context gets them first. An encrypted
        # key would have the process ask for a password at its terminal.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
            context.load_cert_chain(*self._files, password=lambda: "")

    async def start(self) -> None:
        """Look for a renewed certificate from now on; connections that are open keep theirs."""
        for watch in self._watches:
            await watch.look()
            await watch.start()

    async def close(self) -> None:
        for watch in self._watches:
            await watch.close()

    async def _renew(self) -> None:
        try:
            self._load()
        except (ssl.SSLError, OSError) as error:
            # Of two files the second may not be there yet; its change is the next try.
            why = getattr(error, "reason", None) or "unreadable"
            log.warning("certificate not renewed", extra={"fields": {"why": why}})
        else:
            log.info("certificate renewed")
