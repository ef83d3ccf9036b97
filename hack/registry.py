#!/usr/bin/env python3
"""Serves images on loopback for pulls: hack/registry.py PORT TAR..., each tar an OCI layout of hack/build-images.sh."""

import http.server
import json
import sys
import tarfile

NAME = "io.containerd.image.name"


def read(paths):
    """Digest -> its bytes, and (repository, tag) -> digest of the manifest."""
    blobs, tags = {}, {}
    for path in paths:
        with tarfile.open(path) as archive:
            files = {member.name.removeprefix("./"): archive.extractfile(member).read() for member in archive if member.isfile()}
        for name, data in files.items():
            if name.startswith("blobs/"):
                blobs[name.removeprefix("blobs/").replace("/", ":")] = data
        for manifest in json.loads(files["index.json"])["manifests"]:
            repository, _, tag = manifest["annotations"][NAME].partition("/")[2].rpartition(":")
            tags[repository, tag] = manifest["digest"]
    return blobs, tags


class Registry(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = self.path.partition("?")[0].strip("/")
        if path == "v2":
            return self.reply(200, {}, b"{}")
        for kind in ("manifests", "blobs"):
            repository, found, reference = path.removeprefix("v2/").partition(f"/{kind}/")
            digest = self.server.tags.get((repository, reference), reference)
            if found and digest in self.server.blobs:
                data = self.server.blobs[digest]
                media = json.loads(data)["mediaType"] if kind == "manifests" else "application/octet-stream"
                return self.reply(200, {"Content-Type": media, "Docker-Content-Digest": digest}, data)
        self.reply(404, {}, b'{"errors":[{"code":"NAME_UNKNOWN"}]}')

    do_HEAD = do_GET

    def reply(self, status, headers, body):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Registry)
    server.blobs, server.tags = read(sys.argv[2:])
    server.serve_forever()


main()
