"""Base URLs of engines and routers, whoever names them: the command line or a router's list."""

from __future__ import annotations

from urllib.parse import urlsplit


def base_url(url: str) -> str:
    """The URL without a slash at its end. Raises ValueError, without the URL's own password, for what no
    call could be sent to."""
    try:
        parts = urlsplit(url)
        secret = parts.username is not None or parts.password is not None
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:  # a port that is no number (which may be a password), half an IPv6 address
        raise ValueError(f"{_shown(url)} is no base URL: give http://host:port") from error
    if secret:
        raise ValueError(
            f"{parts.hostname}: the URL holds a user name, which errors would tell: leave it out"
        )
    if not good or "?" in url or "#" in url:
        raise ValueError(f"{_shown(url)} is no base URL: give http://host:port")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"{_shown(url)} has characters that no URL has: write xn--…, %20 and so on")
    try:
        (parts.hostname or "").encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{_shown(url)} names no host ({error}): give http://host:port") from error
    return url.rstrip("/")


def _shown(url: str) -> str:
    """What may be told of a URL that does not do."""
    return repr(url if "@" not in url else "…" + url.rpartition("@")[2])
