"""TLS of a server of uvicorn's, whose certificate is read again when its files change."""

import asyncio
import logging
import ssl

from cluster.certificate import CertificateFiles
from engine.errors import InvalidConfig, going_on

LOOK_SECONDS = 1.0
_logger = logging.getLogger("ray.serve")


class RenewedContext:
    """`context` is for the server's sockets: each new connection gets the certificate that the
    files had when they were last good. Raises InvalidConfig if they are not now.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._state = files.state
        self._problem: str | None = None  # with what the files have now
        self._newest = self.context = _load(files)
        self.context.sni_callback = self._give_newest

    async def keep(self) -> None:
        """Look at the files every second."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with going_on(_logger, "looking for a new certificate"):
                self.look()

    def look(self) -> None:
        """Files that were not good may be, as they are, later: once their time has come."""
        state = self._files.state
        if state == self._state and self._problem is None:
            return
        self._state, before, self._problem = state, self._problem, None
        try:
            self._newest = _load(self._files)
            _logger.info(f"New connections get the new certificate of {self._files.certfile}")
        except InvalidConfig as error:
            self._problem = str(error)
            if self._problem != before:
                _logger.error(f"The certificate stays as it was: {error}")

    def _give_newest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in every handshake, whether the client names a host or not."""
        connection.context = self._newest


def _load(files: CertificateFiles) -> ssl.SSLContext:
    files.read()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certfile, files.keyfile)
    except (OSError, ssl.SSLError) as error:  # they have changed just now, or OpenSSL wants stronger ones
        raise InvalidConfig(f"ssl_certfile={files.certfile} cannot be served: {error}") from None
    return context
