"""As much of the Hub's interface as its own client needs, on this machine alone, with faults on
request.
"""

import base64
import hashlib
import http
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

TOKEN = "hf_of_a_test"


@dataclass
class Model:
    """One repository: commits by hash, branches to commits."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit_(self, branch: str, files: dict[str, bytes]) -> str:
        """Put files on top of a branch; return the commit's hash."""
        old = self.commits.get(self.branches.get(branch, ""), {})
        text = json.dumps([branch, len(self.commits), sorted(files)])
        oid = hashlib.sha1(text.encode()).hexdigest()
        self.commits[oid] = {**old, **files}
        self.branches[branch] = oid
        return oid

    def find(self, revision: str) -> str | None:
        """Return the hash of a branch's or a commit's."""
        return self.branches.get(revision) or (revision if revision in self.commits else None)


class Hub(ThreadingHTTPServer):
    """A context manager; `models` is what it holds."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.models: dict[str, Model] = {}
        self.stored: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.cut: str | None = None
        """File in the middle of which every download ends."""
        self.spoil: str | None = None
        """File of which a byte is changed on the way."""
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        """HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers one client."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing."""

    def do_POST(self) -> None:
        path, body = unquote(self.path.split("?")[0]), self._body()
        self.server.asked.append(f"POST {path}")
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._refuse(401, "", "Invalid username or password.")
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(json.loads(body))
        owner, name, what, revision = path.removeprefix("/api/models/").split("/")
        model = self.server.models[f"{owner}/{name}"]
        if what == "preupload":
            files = [
                {"path": one["path"], "shouldIgnore": False,
                 "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular"}
                for one in json.loads(body)["files"]
            ]  # fmt: skip
            return self._json({"files": files})
        if what == "branch":
            model.branches[revision] = model.branches["main"]
            return self._json({})
        assert what == "commit"
        rows = [json.loads(line) for line in body.splitlines()]
        files = {}
        for row in rows[1:]:
            value = row["value"]
            if row["key"] == "lfsFile":
                files[value["path"]] = self.server.stored[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        oid = model.commit_(revision, files)
        where = f"{self.server.url}/{owner}/{name}/commit/{oid}"
        return self._json({"success": True, "commitOid": oid, "commitUrl": where})

    def do_PUT(self) -> None:
        body = self._body()
        oid = self.path.rsplit("/", 1)[1]
        self.server.asked.append("PUT")
        if self.server.cut == "upload":
            return self._refuse(403, "", "no room")
        assert hashlib.sha256(body).hexdigest() == oid
        self.server.stored[oid] = body
        return self._json({})

    def do_GET(self) -> None:
        path = unquote(self.path.split("?")[0])
        self.server.asked.append(f"{self.command} {path}")
        api = path.startswith("/api/models/")
        owner, name, *rest = path.removeprefix("/api/models").strip("/").split("/")
        model = self.server.models.get(f"{owner}/{name}")
        if model is None or (model.private and "Authorization" not in self.headers):
            return self._refuse(401 if model else 404, "RepoNotFound", "Repository not found")
        revision = "main" if len(rest) < 2 else rest[1]
        oid = model.find(revision)
        if oid is None:
            if api and not model.commits:  # an empty repository has no commit
                return self._json({"id": f"{owner}/{name}", "sha": None, "siblings": []})
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        files = model.commits[oid]
        if api:
            return self._json(self._described(f"{owner}/{name}", oid, files))
        return self._file("/".join(rest[2:]), oid, files)

    do_HEAD = do_GET  # noqa: N815

    def _described(self, name: str, oid: str, files: dict[str, bytes]) -> dict[str, Any]:
        siblings = []
        for path, content in files.items():
            one: dict[str, Any] = {"rfilename": path, "size": len(content)}
            if path.endswith(".safetensors"):
                digest = hashlib.sha256(content).hexdigest()
                one["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(one)
        return {"id": name, "sha": oid, "siblings": siblings, "private": False}

    def _file(self, path: str, oid: str, files: dict[str, bytes]) -> None:
        if path not in files:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        content = files[path]
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", oid)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if self.server.spoil == path:
            content = content[:-1] + bytes([content[-1] ^ 1])
        if self.server.cut == path:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return None
        self.wfile.write(content)
        return None

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if name.startswith("others/"):
            return self._refuse(403, "", "You don't have the rights")
        if name in self.server.models:
            return self._json({"url": f"{self.server.url}/{name}"}, 409)
        self.server.models[name] = model = Model(
            private=asked.get("private") or asked.get("visibility") == "private"
        )
        model.commit_("main", {".gitattributes": b""})
        return self._json({"url": f"{self.server.url}/{name}"})

    def _batch(self, asked: dict[str, Any]) -> None:
        objects: list[dict[str, Any]] = []
        for one in asked["objects"]:
            known = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.server.stored:
                href = f"{self.server.url}/store/{one['oid']}"
                known["actions"] = {"upload": {"href": href}}
            objects.append(known)
        self._json({"transfer": "basic", "objects": objects})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _json(self, value: Any, status: int = http.HTTPStatus.OK) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()
