# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Local server with the part of the Hub's HTTP API that the client needs to create and fill a repository."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

Files = dict[str, bytes]


def hash_commit(files: Files, parent: str) -> str:
    digest = hashlib.sha1(parent.encode())
    for name, content in sorted(files.items()):
        digest.update(name.encode() + content)
    return digest.hexdigest()


@dataclass
class Repository:
    """Repository of the server, with its commits by id, and the commit ids of its branches."""

    private: bool
    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: Files, message: str) -> str:
        oid = hash_commit(files, self.branches.get(branch, ""))
        self.commits[oid], self.branches[branch] = files, oid
        self.messages.append(message)
        return oid

    def files(self, branch: str = "main") -> Files:
        return self.commits[self.branches[branch]]


@dataclass
class Hub:
    """
    State of the server.

    Attributes:
        repositories: Repositories by name.
        blobs: Uploaded files of weights by hash.
        requests: All requests so far, as "METHOD path".
        refused: Regular expression of the requests to refuse, or None.
        endpoint: URL of the server.
    """

    repositories: dict[str, Repository] = field(default_factory=dict)
    blobs: Files = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    refused: str | None = None
    endpoint: str = ""


class Refused(Exception):
    """Error that the server answers a request with."""

    def __init__(self, status: int, message: str, **more: str) -> None:
        super().__init__(message)
        self.status = status
        self.response = {"error": message, **more}


class Handler(BaseHTTPRequestHandler):
    """Handler of the requests in `ROUTES`. It requires the token hf_test."""

    hub: Hub

    def log_message(self, *arguments: object) -> None:
        pass

    def _handle(self) -> None:
        path = unquote(urlparse(self.path).path)
        call = f"{self.command} {path}"
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append(call)
        try:
            if self.hub.refused and re.search(self.hub.refused, call):
                raise Refused(400, "refused by the test")
            if not path.startswith("/blob/") and self.headers.get("Authorization") != "Bearer hf_test":
                raise Refused(401, "no token")
            self._respond(200, self._route(call, body))
        except Refused as refused:
            self._respond(refused.status, refused.response)

    do_GET = do_POST = do_PUT = _handle

    def _respond(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        self.wfile.write(content)

    def _route(self, call: str, body: bytes) -> Any:
        for pattern, method in self.ROUTES.items():
            match = re.fullmatch(pattern, call)
            if match:
                return method(self, *match.groups(), body)
        raise Refused(501, f"the server has no route for {call}")

    def _repository(self, name: str) -> Repository:
        if name not in self.hub.repositories:
            raise Refused(404, "Repository not found")
        return self.hub.repositories[name]

    # ------------------------------------------------------------------------------------------------------ routes

    def create(self, body: bytes) -> Any:
        options = json.loads(body)
        name = options["name"]
        if options.get("organization"):
            name = f"{options['organization']}/{name}"
        if name in self.hub.repositories:
            raise Refused(409, "You already created this model repo", url=f"{self.hub.endpoint}/{name}")
        repository = Repository(private=bool(options.get("private")) or options.get("visibility") == "private")
        repository.commit("main", {".gitattributes": b"*.safetensors filter=lfs\n"}, "initial commit")
        self.hub.repositories[name] = repository
        return {"url": f"{self.hub.endpoint}/{name}", "id": name}

    def info(self, name: str, revision: str, body: bytes) -> Any:
        repository = self._repository(name)
        files = repository.files(revision)
        return {
            "id": name,
            "sha": repository.branches[revision],
            "private": repository.private,
            "siblings": [{"rfilename": file} for file in sorted(files)],
            "tags": [],
        }

    def tree(self, name: str, revision: str, body: bytes) -> Any:
        files = self._repository(name).files(revision)
        return [
            {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha256(content).hexdigest()}
            for file, content in sorted(files.items())
        ]

    def validate_yaml(self, body: bytes) -> Any:
        content = json.loads(body)["content"]
        if not content.startswith("---\n"):
            raise Refused(400, "no metadata")
        return {"errors": [], "warnings": []}

    def preupload(self, name: str, revision: str, body: bytes) -> Any:
        self._repository(name).files(revision)
        return {
            "files": [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
        }

    def lfs_batch(self, name: str, body: bytes) -> Any:
        self._repository(name)
        objects = []
        for file in json.loads(body)["objects"]:
            entry = {"oid": file["oid"], "size": file["size"]}
            if file["oid"] not in self.hub.blobs:  # stored files are not uploaded again
                address = f"{self.hub.endpoint}/blob/{file['oid']}"
                entry["actions"] = {"upload": {"href": address, "header": {}}}
            objects.append(entry)
        return {"transfer": "basic", "objects": objects}

    def blob(self, oid: str, body: bytes) -> Any:
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.blobs[oid] = body
        return {}

    def commit(self, name: str, revision: str, body: bytes) -> Any:
        repository = self._repository(name)
        lines = [json.loads(line) for line in body.splitlines()]
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, repository.branches[revision]):
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        files = dict(repository.files(revision))
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            else:
                raise Refused(501, f"the server does not support {line['key']}")
        oid = repository.commit(revision, files, header["summary"])
        return {"commitUrl": f"{self.hub.endpoint}/{name}/commit/{oid}", "commitOid": oid, "success": True}

    ROUTES = {
        r"POST /api/repos/create": create,
        r"POST /api/validate-yaml": validate_yaml,
        r"GET /api/models/(.+)/revision/(.+)": info,
        r"GET /api/models/(.+)/tree/(.+)": tree,
        r"POST /api/models/(.+)/preupload/(.+)": preupload,
        r"POST /api/models/(.+)/commit/(.+)": commit,
        r"POST /(.+)\.git/info/lfs/objects/batch": lfs_batch,
        r"PUT /blob/(.+)": blob,
    }


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a server on a free port of this machine until the end of the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubHandler", (Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
