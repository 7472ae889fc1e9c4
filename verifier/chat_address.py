"""Where a chat server is: its address as the user gave it, taken apart.

In: an address such as http://localhost:8000/v1, with or without a query, a user and a password. Out: where questions are
posted, in a form that messages may show, and what goes along.
"""

from __future__ import annotations

import base64
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from .errors import InputError

_POSTED_TO = "/chat/completions"


def endpoint(url: str, posted_to: str = _POSTED_TO) -> tuple[str, str | None]:
    """The address to post to, and the Authorization that its user and password make. A path `posted_to` other than the
    chat's takes the place of /v1 too. Raises InputError for what is no address."""
    url = url.strip()
    try:
        parsed = urlsplit(url)
        host = (parsed.hostname or "").encode("idna")
        if parsed.scheme not in ("http", "https") or not host or parsed.port == 0:
            raise ValueError
    except ValueError:
        raise InputError(f"{url!r} is no address of a server; give one like http://localhost:8000/v1") from None
    root = parsed.path.rstrip("/").removesuffix(_POSTED_TO)
    path = (root if posted_to == _POSTED_TO else root.removesuffix("/v1")) + posted_to
    named = f"{unquote(parsed.username or '')}:{unquote(parsed.password or '')}"
    shown = parsed._replace(path=path, netloc=parsed.netloc.rpartition("@")[2], fragment="").geturl()
    return shown, f"Basic {base64.b64encode(named.encode()).decode()}" if named != ":" else None


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for this address (https_proxy, no_proxy, ...)."""
    parsed, named = urlsplit(url), getproxies()
    return None if proxy_bypass(parsed.hostname or "") else named.get(parsed.scheme, named.get("all"))
