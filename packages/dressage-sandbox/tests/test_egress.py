from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from dressage_sandbox import BubblewrapProvider, InvalidSpec, SandboxSpec
from dressage_sandbox.egress import Address, AllowList, Egress, Refused, public
from hypothesis import given
from hypothesis import strategies as st


class Origin:
    """An HTTP origin that keeps the requests it got."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        length = next(
            (int(f.split(b":")[1]) for f in head.split(b"\r\n") if f.lower().startswith(b"content-length")), 0
        )
        self.bodies.append(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()


@pytest.fixture
async def origin() -> AsyncIterator[tuple[Origin, int]]:
    """An origin on the host's loopback and its port."""
    made = Origin()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    yield made, int(server.sockets[0].getsockname()[1])
    server.close()


def ask(request: str) -> list[str]:
    """A program that sends a request to the proxy and prints the answer."""
    code = (
        "import os, socket\nfrom urllib.parse import urlsplit\n"
        "u = urlsplit(os.environ['HTTPS_PROXY'])\ns = socket.create_connection((u.hostname, u.port), 5)\n"
        f"s.sendall({request!r}.encode())\ns.settimeout(5)\n"
        "print(b''.join(iter(lambda: s.recv(65536), b'')).decode(errors='replace'))"
    )
    return ["python3", "-c", code]


async def test_a_listed_address_is_reached_by_http_and_by_connect_and_no_other(
    provider: BubblewrapProvider, origin: tuple[Origin, int]
) -> None:
    served, port = origin
    box = await provider.create(SandboxSpec(egress=(f"127.0.0.1:{port}",)))
    get = (
        f"GET http://127.0.0.1:{port}/a?b=1 HTTP/1.1\r\nHost: evil.example\r\nProxy-Authorization: x\r\n\r\n"
    )
    assert (await box.run(ask(get))).stdout.endswith(b"hi\n")
    assert served.heads[0].startswith(b"GET /a?b=1 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % port)
    assert b"evil" not in served.heads[0]
    assert b"Proxy" not in served.heads[0]
    tunnel = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\nGET / HTTP/1.0\r\n\r\n"
    assert b"200 Connection established" in (await box.run(ask(tunnel))).stdout
    assert len(served.heads) == 2
    hosts = [f"127.0.0.1:{port + 1}", "169.254.169.254:80", "example.org:443"]
    hosts += [
        f"{host}:{port}" for host in ("localhost", "[::1]", "127.1", "2130706433", "[::ffff:127.0.0.1]")
    ]
    for host in hosts:
        answer = (await box.run(ask(f"CONNECT {host} HTTP/1.1\r\n\r\n"))).stdout
        assert b" 403 " in answer, (host, answer)
    assert len(served.heads) == 2
    assert any("169.254.169.254" in line for line in box.refused)


async def test_ordinary_programs_find_the_proxy_by_their_environment(
    provider: BubblewrapProvider, origin: tuple[Origin, int]
) -> None:
    served, port = origin
    box = await provider.create(
        SandboxSpec(egress=(f"127.0.0.1:{port}",), env={"NO_PROXY": "", "no_proxy": ""})
    )
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/x', b'body', 5).read())"
    assert (await box.run(["python3", "-c", code])).stdout == b"b'hi'\n"
    assert served.bodies == [b"body"]


async def test_a_redirect_leads_to_what_is_listed_and_nowhere_else(
    provider: BubblewrapProvider, origin: tuple[Origin, int]
) -> None:
    served, port = origin
    hidden = Origin()
    targets = iter([f"127.0.0.1:{port}", "HIDDEN", "169.254.169.254", "127.0.0.1.", "[::1]:80"])

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        where = next(targets).replace("HIDDEN", f"127.0.0.1:{beside.sockets[0].getsockname()[1]}").encode()
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://" + where + b"/x\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    beside = await asyncio.start_server(hidden.serve, "127.0.0.1", 0)
    first = await asyncio.start_server(redirect, "127.0.0.1", 0)
    own = f"127.0.0.1:{first.sockets[0].getsockname()[1]}"
    listed = SandboxSpec(egress=(own, f"127.0.0.1:{port}"), env={"NO_PROXY": "", "no_proxy": ""})
    box = await provider.create(listed)
    code = f"import urllib.request as u; print(u.urlopen('http://{own}/', timeout=5).read())"
    assert (await box.run(["python3", "-c", code])).stdout == b"b'hi'\n"
    for _ in range(4):
        assert b"HTTP Error 403" in (await box.run(["python3", "-c", code])).stderr
    assert (len(served.heads), hidden.heads) == (1, [])
    assert len(box.refused) == 4
    for server in (beside, first):
        server.close()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        ("GET https://example.org/ HTTP/1.1\r\n\r\n", 400),
        ("GET http://u:p@127.0.0.1:{port}/ HTTP/1.1\r\n\r\n", 400),
        ("GET http://127.0.0.1:0/ HTTP/1.1\r\n\r\n", 403),
        ("POST http://127.0.0.1:{port}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        ("POST http://127.0.0.1:{port}/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        ("POST http://127.0.0.1:{port}/ HTTP/1.1\r\nA b: 1\r\n\r\n", 400),
        ("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nA: 1\nHost: x\r\n\r\n", 400),
        ("GET\tX http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n", 400),
        ("GET http://127.0.0.1:{port}/\0 HTTP/1.1\r\n\r\n", 400),
        ("GET http://127.0.0.1:{port}/ HTTP/1.1\v\r\n\r\n", 400),
        ("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nA: 1\vHost: x\r\n\r\n", 400),
        ("GET http://127.0.0.1:{port}/ HTTP/1.1\r\n B: folded\r\n\r\n", 400),
        ("CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n", 400),
        ("nonsense\r\n\r\n", 400),
        ("GET http://127.0.0.1:{port}/ HTTP/1.1\r\nA: " + "x" * (65 << 10) + "\r\n\r\n", 431),
    ],
)
async def test_what_a_proxy_cannot_take_is_refused_before_any_connection(
    provider: BubblewrapProvider, origin: tuple[Origin, int], request_text: str, status: int
) -> None:
    served, port = origin
    box = await provider.create(SandboxSpec(egress=(f"127.0.0.1:{port}",)))
    await box.write("request", request_text.replace("{port}", str(port)).encode())
    code = ask("")[2].replace("''.encode()", "open('request', 'rb').read()")
    answer = (await box.run(["python3", "-c", code])).stdout
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert served.heads == []


async def test_a_second_request_on_one_connection_does_not_reach_the_origin(
    provider: BubblewrapProvider, origin: tuple[Origin, int]
) -> None:
    served, port = origin
    box = await provider.create(SandboxSpec(egress=(f"127.0.0.1:{port}",)))
    one = f"GET http://127.0.0.1:{port}/1 HTTP/1.1\r\n\r\n"
    await box.run(ask(one + "GET /2 HTTP/1.1\r\nHost: other.internal\r\n\r\n"))
    assert len(served.heads) == 1
    assert b"Connection: close" in served.heads[0]


async def test_a_sandbox_with_a_relay_and_no_list_has_no_proxy(provider: BubblewrapProvider) -> None:
    box = await provider.create(SandboxSpec(relay="127.0.0.1:9"))
    assert b"PROXY" not in (await box.run(["env"])).stdout
    connect = "import socket; socket.create_connection(('127.0.0.1', 8801), 1)"
    assert (await box.run(["python3", "-c", connect])).exit_code == 1


def resolver(*answers: Sequence[str]) -> tuple[list[str], object]:
    """A resolver that gives these answers in order, and the names that it was asked for."""
    asked: list[str] = []
    left = list(answers)

    async def resolve(name: str, port: int) -> Sequence[Address]:
        asked.append(name)
        return [ipaddress.ip_address(text) for text in left.pop(0)]

    return asked, resolve


async def test_names_are_resolved_once_and_only_when_listed() -> None:
    listed = AllowList.parse(["Example.ORG:443"])
    asked, resolve = resolver(["93.184.216.34"], ["10.0.0.1"])
    assert await listed.admit("example.org.", 443, resolve) == [ipaddress.ip_address("93.184.216.34")]  # type: ignore[arg-type]
    for host, port in (("example.org", 80), ("www.example.org", 443), ("example.com", 443)):
        with pytest.raises(Refused, match="not on the allow-list"):
            await listed.admit(host, port, resolve)  # type: ignore[arg-type]
    assert asked == ["example.org"]
    with pytest.raises(Refused, match="not public"):  # the name was pointed elsewhere meanwhile
        await listed.admit("example.org", 443, resolve)  # type: ignore[arg-type]


async def test_of_several_answers_only_the_allowed_ones_are_used() -> None:
    mixed = ["10.0.0.7", "93.184.216.34", "169.254.169.254", "::1"]
    for entries, expected in (
        (["a.org:1"], ["93.184.216.34"]),
        (["a.org:1", "10.0.0.7:1", "169.254.169.254:2"], ["10.0.0.7", "93.184.216.34"]),
    ):
        _, resolve = resolver(mixed)
        found = await AllowList.parse(entries).admit("a.org", 1, resolve)  # type: ignore[arg-type]
        assert [str(a) for a in found] == expected


@pytest.mark.parametrize("listed", [False, True])
async def test_a_listed_name_that_leads_to_this_host_is_refused_unless_the_address_is_listed(
    origin: tuple[Origin, int], listed: bool
) -> None:
    served, port = origin
    _, resolve = resolver(["127.0.0.1"])
    entries = [f"a.org:{port}", f"127.0.0.1:{port}"][: 1 + listed]
    egress = Egress(AllowList.parse(entries), resolve=resolve)  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0))
    await egress.start(listener)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(f"GET http://a.org:{port}/p HTTP/1.1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    egress.stop()
    assert answer.startswith(b"HTTP/1.1 200" if listed else b"HTTP/1.1 403")
    assert len(served.heads) == listed
    assert len(egress.refused) == (not listed)


@given(st.ip_addresses(v=4))
def test_an_address_is_as_public_as_what_it_wraps(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    wrapped = [
        ipaddress.IPv6Address((0xFFFF << 32) | number),
        ipaddress.IPv6Address((0x64FF9B << 96) | number),
        ipaddress.IPv6Address((0x2002 << 112) | (number << 80) | 1),
    ]
    assert [public(each) for each in wrapped] == [public(address)] * 3


NOT_PUBLIC = """
127.0.0.1 10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 ::1 :: fe80::1 fd00:ec2::254
224.0.0.1 255.255.255.255 198.18.0.1 ff02::1 240.0.0.1 192.0.0.192 192.0.0.10 192.88.99.1 192.0.2.1 fec0::1
2001:db8::1 3fff::1 5f00::1 64:ff9b:1::7f00:1 ::127.0.0.1 ::ffff:192.0.0.192
"""


@pytest.mark.parametrize("text", NOT_PUBLIC.split())
def test_addresses_that_are_not_public(text: str) -> None:
    assert not public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "entry",
    [
        "example.org",
        "*.example.org:443",
        "http://example.org:80",
        "127.1:80",
        "0x7f.1:80",
        "a b:1",
        "ü.org:1",
        "",
    ],
)
async def test_an_entry_that_is_not_one_host_and_port_is_refused_by_name(
    provider: BubblewrapProvider, entry: str
) -> None:
    with pytest.raises(InvalidSpec, match="egress="):
        await provider.create(replace(SandboxSpec(), egress=(entry,)))
