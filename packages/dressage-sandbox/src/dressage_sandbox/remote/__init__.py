"""A sandbox over anything that can run a shell script somewhere and put a file there.

What the providers of virtual machines and of containers share: commands with bounded output and time-outs
that end their whole tree, services, files. All of it is done by plain POSIX shell scripts inside, as the
agent's own user; nothing need be installed in the image but the usual small programs (sh, cat, head, tail,
tee, wc, base64, mkfifo, find, grep, env, tar).
"""

from .provider import RemoteProvider
from .sandbox import RemoteSandbox
from .snapshots import Snapshots
from .transport import Transport

__all__ = ["RemoteProvider", "RemoteSandbox", "Snapshots", "Transport"]
