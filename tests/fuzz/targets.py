"""The table of targets, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from airlox.errors import AirloxError, StorageError, TreeError, UsageError

from . import agents, containers, documents, files, jobs, requests, streams, transfers
from .target import Target

TARGETS: Final[Mapping[str, Target]] = {
    # documents
    "address": Target(documents.read_address, documents.address_seeds),
    "cert": Target(documents.read_cert, documents.cert_seeds),
    "encoding": Target(documents.read_encoding, documents.encoding_seeds),
    "envelope": Target(documents.read_envelope, documents.envelope_seeds),
    "epoch": Target(documents.read_epoch, documents.epoch_seeds),
    "frame": Target(documents.read_frame, documents.frame_seeds),
    "invite": Target(documents.read_invite, documents.invite_seeds),
    "join": Target(documents.read_join, documents.join_seeds),
    "manifest": Target(documents.read_manifest, documents.manifest_seeds),
    "name": Target(documents.read_name, documents.name_seeds),
    "payload": Target(documents.read_payload, documents.payload_seeds),
    "segment": Target(documents.read_segment, documents.segment_seeds),
    "code": Target(transfers.read_code, transfers.code_seeds),
    "transfer": Target(transfers.read_transfer, transfers.transfer_seeds),
    # what a relay answers
    "answer": Target(streams.read_answer, streams.answer_seeds, AirloxError),
    "chunks": Target(streams.read_chunks, streams.chunk_seeds),
    "events": Target(streams.read_events, streams.event_seeds),
    "http": Target(streams.read_http, streams.http_seeds, AirloxError),
    "sse": Target(streams.read_sse, streams.sse_seeds),
    "trail": Target(streams.read_trail, streams.trail_seeds),
    # what a relay is asked
    "request": Target(requests.read_request, requests.request_seeds),
    # what an agent says
    "arguments": Target(agents.read_arguments, agents.argument_seeds, UsageError),
    "message": Target(agents.read_message, agents.message_seeds),
    # what a job says
    "output": Target(jobs.read_output, jobs.output_seeds),
    "tunnel": Target(jobs.read_tunnel, jobs.tunnel_seeds),
    # archives, images, trees
    "changes": Target(containers.read_changes, containers.change_seeds),
    "ignore": Target(containers.read_ignore, containers.ignore_seeds, TreeError),
    "image": Target(containers.read_image, containers.image_seeds),
    "index": Target(containers.read_index, containers.index_seeds),
    "lack": Target(containers.read_lack, containers.lack_seeds),
    "pack": Target(containers.read_packed, containers.pack_seeds),
    "recipes": Target(containers.read_recipes, containers.recipe_seeds),
    "state": Target(containers.read_state, containers.state_seeds),
    "zip": Target(containers.read_zip, containers.zip_seeds),
    # files of our own
    "cache": Target(files.read_cache, files.cache_seeds, StorageError),
    "journal": Target(files.read_journal, files.journal_seeds, StorageError),
    "lines": Target(files.read_lines, files.line_seeds, AirloxError),
    "log": Target(files.read_log, files.log_seeds),
    "record": Target(files.read_record, files.record_seeds, StorageError),
}
