"""The way out for an allow-list: an HTTP proxy of the host that a sandbox finds on its own loopback.

It takes CONNECT, and plain HTTP requests in absolute form. Names are resolved here, and only those that are
listed; the connection goes to the very address that was resolved and checked, so that a second answer of the
DNS changes nothing. Addresses that are not public (private networks, loopback, link-local, where cloud
metadata lies) are refused unless they are listed as addresses themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from .accepting import Accepting, Room
from .errors import InvalidSpec
from .proxy_request import HEAD_BYTES, Refused, read_head, target_of
from .relay import parse_address, pump, splice

__all__ = ["AllowList", "Egress", "Refused", "proxy_variables", "public"]

_CONNECT_S = 15.0
_KEPT_REFUSALS = 32
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NEVER_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "192.0.0.0/24",  # a cloud's metadata lies there too; which parts are public differs between Pythons
        "192.88.99.0/24",  # relays of 6to4, given up
        "fec0::/10",  # site-local, given up and still routed
        "3fff::/20",  # for documentation; not known to older Pythons
        "5f00::/16",  # segment routing
    )
)
_log = logging.getLogger("dressage_sandbox.egress")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


def proxy_variables(port: int) -> dict[str, str]:
    """The variables by which programs inside find the proxy; what is local goes around it."""
    url, local = f"http://127.0.0.1:{port}", "localhost,127.0.0.1,::1"
    upper = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": local}
    return upper | {key.lower(): value for key, value in upper.items()}


def public(address: Address) -> bool:
    """Whether an address is one of the public internet, whatever form it is wrapped in."""
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if embedded is None and address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            return public(embedded)
    if any(address in network for network in _NEVER_PUBLIC):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


@dataclass(frozen=True, slots=True)
class AllowList:
    """Names and addresses, each with one port."""

    names: frozenset[tuple[str, int]]
    addresses: frozenset[tuple[Address, int]]

    @classmethod
    def parse(cls, entries: Sequence[str]) -> AllowList:
        """From ``host:port`` each; the host is a full name or an address.

        Raises:
            InvalidSpec: names the entry and the fix.
        """
        names, addresses = set(), set()
        for entry in entries:
            host, port = parse_address(entry, "egress")
            address = _address(host)
            if address is not None:
                addresses.add((address, port))
            elif _NAME.fullmatch(name := _canonical(host)) and not name.rpartition(".")[2].isdecimal():
                names.add((name, port))
            else:
                raise InvalidSpec(
                    f"egress={entry!r}: a full host name (no '*') or an address, and a port, each listed"
                )
        return cls(frozenset(names), frozenset(addresses))

    async def admit(self, host: str, port: int, resolve: Resolve) -> list[Address]:
        """The addresses that may be connected to for this request.

        Raises:
            Refused: it is not listed, does not resolve, or resolves to nothing that is allowed.
        """
        literal = _address(host)
        if literal is not None:
            if (literal, port) not in self.addresses:
                raise Refused(403, f"{host}:{port} is not on the allow-list")
            return [literal]
        name = _canonical(host)
        if (name, port) not in self.names:
            raise Refused(403, f"{host}:{port} is not on the allow-list")
        try:
            found = await resolve(name, port)
        except OSError as error:
            raise Refused(502, f"{host} does not resolve: {error}") from error
        allowed = [a for a in found if public(a) or (a, port) in self.addresses]
        if not allowed:
            raise Refused(403, f"{host} resolves to an address that is not public, and not on the allow-list")
        return allowed


class Egress(Accepting):
    """Serves one sandbox on a listening socket of its network namespace."""

    def __init__(
        self,
        allowed: AllowList,
        resolve: Resolve | None = None,
        max_connections: int = 128,
        room: Room | None = None,
    ) -> None:
        super().__init__(max_connections, HEAD_BYTES, room)
        self._allowed = allowed
        self._resolve = resolve or resolve_name
        self.refused: deque[str] = deque(maxlen=_KEPT_REFUSALS)
        """The last requests that were refused, and why: some are worth a look by who trains the agent."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await read_head(reader)
            target = target_of(head)
            addresses = await self._allowed.admit(target.host, target.port, self._resolve)
            up_reader, up_writer = await _connect(addresses, target.port)
        except Refused as refusal:
            self.refused.append(str(refusal))
            body = f"egress: {refusal}\n".encode()
            status = b"HTTP/1.1 %d Refused\r\n" % refusal.status
            writer.write(status + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
            await writer.drain()
            writer.write_eof()
            return
        try:
            if target.request is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await splice(reader, writer, up_reader, up_writer)
            else:
                up_writer.write(target.request)
                await _exchange(reader, writer, up_reader, up_writer, target.body_bytes)
        finally:
            up_writer.transport.abort()


async def resolve_name(name: str, port: int) -> list[Address]:
    """By the host's own resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))


async def _connect(
    addresses: Sequence[Address], port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    last: Exception = Refused(502, "no address")
    for address in addresses:
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await asyncio.open_connection(str(address), port)
        except (OSError, TimeoutError) as error:
            last = error
    raise Refused(502, f"cannot connect: {last}")


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    up_reader: asyncio.StreamReader,
    up_writer: asyncio.StreamWriter,
    body_bytes: int,
) -> None:
    """Exactly the request's body up, and all that comes down."""
    upload = asyncio.ensure_future(_copy(reader, up_writer, body_bytes))
    try:
        with contextlib.suppress(OSError):
            await pump(up_reader, writer)
    finally:
        upload.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
            await upload


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
    while size > 0 and (data := await reader.read(min(size, 1 << 16))):
        size -= len(data)
        writer.write(data)
        await writer.drain()


def _canonical(host: str) -> str:
    return host.lower().removesuffix(".")


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
