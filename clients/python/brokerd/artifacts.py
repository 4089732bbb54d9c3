"""Artifacts: files that agents share, with numbered versions. The contents pass through memory."""

from __future__ import annotations

import hashlib
from typing import Iterator, List, Mapping, Optional

from .connection import request_id as new_request_id
from .operation import Call, Steps, operation
from .v1 import artifact_pb2 as pb

_CHUNK = 64 << 10  # bytes


class ArtifactOperations:
    """The operations of `client.artifacts`."""

    @operation
    def upload(
        self, name: str, content: bytes, *, media_type: str = "", description: str = "", task_id: str = "",
        labels: Optional[Mapping[str, str]] = None, announce: bool = False, request_id: str = "",
    ) -> Steps[pb.ArtifactVersion]:
        """Stores a content as the next version of a name; the same content again adds no version.

        announce also publishes the event artifact_shared.
        """
        header = pb.ArtifactHeader(
            request_id=request_id or new_request_id(), name=name, size=len(content),
            sha256=hashlib.sha256(content).hexdigest(), media_type=media_type, description=description, task_id=task_id,
            labels=labels or {}, announce=announce)
        answer: pb.UploadArtifactResponse = yield Call(
            "artifacts", "UploadArtifact", (pb.UploadArtifactRequest(header=header), *_chunks(content)))
        return answer.artifact

    @operation
    def download(self, name: str, version: int = 0) -> Steps[bytes]:
        """Returns the content of a version; 0 is the newest."""
        request = pb.DownloadArtifactRequest(name=name, version=version)
        frames: List[pb.DownloadArtifactResponse] = yield Call("artifacts", "DownloadArtifact", request)
        return b"".join(frame.chunk for frame in frames)

    @operation
    def get(self, name: str, version: int = 0) -> Steps[pb.ArtifactVersion]:
        """Returns the description of a version; 0 is the newest."""
        request = pb.GetArtifactRequest(name=name, version=version)
        answer: pb.GetArtifactResponse = yield Call("artifacts", "GetArtifact", request)
        return answer.artifact


def _chunks(content: bytes) -> Iterator[pb.UploadArtifactRequest]:
    return (pb.UploadArtifactRequest(chunk=content[at:at + _CHUNK]) for at in range(0, len(content), _CHUNK))
