"""Everything that could be reached by a socket."""

from __future__ import annotations

from ._attempt import Attempt, inside

__all__ = ["ATTEMPTS"]

_KIND = "network"

_CONNECT = """
import socket
def reach(host, ports):
    for port in ports:
        try: socket.create_connection((host, port), 0.5).close(); escaped(f'{host}:{port}')
        except OSError: pass
"""

_ABSTRACT = """
import glob, socket, stat, os
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try: socket.socket(socket.AF_UNIX, kind).connect(T['abstract']); escaped('an abstract socket of the host')
    except OSError: pass
if T['abstract'][1:] in open('/proc/net/unix').read(): escaped("the host's sockets are listed")
for path in ('/run/docker.sock', '/var/run/docker.sock', '/run/podman/podman.sock',
             '/run/dbus/system_bus_socket', '/run/systemd/private', '/run/containerd/containerd.sock'):
    if os.path.exists(path): escaped(path)
"""

_DATAGRAMS = """
import socket
for host, port in (('8.8.8.8', 53), ('1.1.1.1', 443), ('169.254.169.254', 53), ('255.255.255.255', 67),
                   ('224.0.0.251', 5353)):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    try: s.sendto(b'x', (host, port)); escaped(f'a datagram to {host}')
    except OSError: pass
try: socket.getaddrinfo('example.org', 80); escaped('a name was resolved')
except OSError: pass
"""

_FAMILIES = """
import socket, fcntl, struct
for family, kind in ((17, 3), (40, 1), (38, 5), (44, 3), (2, 3), (10, 3), (31, 3), (29, 3), (1000, 1)):
    for protocol in (0, 1, 6, 255):
        try: socket.socket(family, kind, protocol); escaped(f'a socket of family {family} type {kind}')
        except OSError: pass
s = socket.socket()
for call in (0x8914, 0x8916, 0x89a0):  # SIOCSIFFLAGS SIOCSIFADDR SIOCBRADDBR
    try: fcntl.ioctl(s, call, struct.pack('16sh14x', b'lo', 0)); escaped(f'ioctl {call:x}')
    except OSError: pass
"""

_PROXY = """
import os, socket
def ask(text):
    s = socket.create_connection(('127.0.0.1', 8801), 5); s.settimeout(5); s.sendall(text.encode())
    return s.recv(4096).decode(errors='replace')
names = ['127.0.0.1', 'localhost', '[::1]', '0.0.0.0', '127.1', '0x7f000001', '2130706433', 'localhost.',
         '[::ffff:127.0.0.1]', '127.0.0.1.nip.io', *T['addresses']]
hosts = [f'{name}:{port}' for name in names for port in T['ports'] + [T['exposed']]]
hosts += ['169.254.169.254:80', 'metadata.google.internal:80', '[fd00:ec2::254]:80', '100.100.100.200:80',
          '10.0.0.1:80', 'example.org:443']
for host in hosts:
    for line in (f'CONNECT {host} HTTP/1.1', f'GET http://{host}/ HTTP/1.1\\r\\nHost: x',
                 f'GET http://allowed@{host}/ HTTP/1.1', f'GET /latest HTTP/1.1\\r\\nHost: {host}'):
        answer = ask(line + '\\r\\n\\r\\n')
        if answer.split(' ')[1:2] not in (['403'], ['400']): escaped(f'{line.split()[:2]}: {answer[:60]}')
"""


ATTEMPTS: tuple[Attempt, ...] = (
    inside(
        _KIND,
        "host loopback and the control plane",
        _CONNECT + "reach('127.0.0.1', T['ports']); reach('::1', T['ports']); reach('0.0.0.0', T['ports'])\n"
        "for address in T['addresses']: reach(address, T['ports'])\n",
    ),
    inside(
        _KIND,
        "cloud metadata and other private addresses",
        _CONNECT
        + "for a in ('169.254.169.254', '169.254.170.2', '100.100.100.200', '10.0.0.1', '192.168.1.1',"
        " 'fd00:ec2::254'): reach(a, [80, 443])\n",
    ),
    inside(
        _KIND,
        "a neighbour's server, inside and as it is exposed",
        _CONNECT + "for a in ('127.0.0.1', *T['addresses']): reach(a, [7777, T['exposed']])\n",
    ),
    inside(_KIND, "abstract sockets, and sockets of container engines", _ABSTRACT),
    inside(_KIND, "datagrams, broadcast, DNS", _DATAGRAMS),
    inside(_KIND, "raw, packet, vsock, crypto and other families; change of interfaces", _FAMILIES),
    inside(_KIND, "the egress proxy: addresses and names that are not listed", _PROXY),
)
