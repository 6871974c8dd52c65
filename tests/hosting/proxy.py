"""A proxy that serves a page under a path, as ingresses do: it takes the path off and says so in headers."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@contextmanager
def proxy(port: int, path: str, set_cookies: list[str]) -> Iterator[str]:
    """The address of a proxy before 127.0.0.1:``port`` under ``path`` ("/explorer"); what is asked for beside
    it is not found. Cookies that the page sets are noted in ``set_cookies`` and not passed on."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            if not self.path.startswith(path + "/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP | {"cookie"}}
            headers |= {"X-Forwarded-Proto": "http", "X-Forwarded-Host": self.headers["host"]}
            headers |= {"X-Forwarded-For": "10.1.2.3", "Content-Length": str(len(body))}
            page = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            page.request(self.command, self.path[len(path) :], body, headers)
            answer = page.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() == "set-cookie":
                    set_cookies.append(value)
                elif name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while part := answer.read1(65536):  # streams are passed on as they come
                self.wfile.write(part)
                self.wfile.flush()
            self.close_connection = True

        do_GET = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}{path}/"
    server.shutdown()
