"""Encoding on the agent's side: what cannot be encoded is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from holdfast.checkpoint.wire.messages import FrameChunk, TableSlice
from holdfast.checkpoint.write.chunk_encoder import ChunkEncoder, KeyFrames
from holdfast.codec import Asymmetric, Fitted, to_json
from holdfast.errors import SaveFailed
from holdfast.storage import MemoryStore
from tests.intents import some_intent


def test_a_save_whose_rows_cannot_be_encoded_names_the_table_and_the_cause() -> None:
    spec = {"name": "item", "rows": 4, "columns": [["weight", "F32", [8]]]}
    table = TableSlice(spec=spec, start=0, stop=4, whole=True, codecs={"weight": to_json(Fitted(bits=4))})
    encoder = ChunkEncoder(some_intent(), [table], KeyFrames(MemoryStore(), in_memory=True))
    chunk = FrameChunk(table=0, offset=0, length=128, rows=4, first=0, last=3)
    with pytest.raises(SaveFailed, match=r"rows 0 to 3 of table item could not be encoded: ValueError\(.*reshape"):
        encoder.encode(chunk, memoryview(bytes(64)))


def test_differences_that_were_made_from_another_baseline_are_refused() -> None:
    spec = {"name": "item", "rows": 4, "columns": [["weight", "F32", [8]]]}
    table = TableSlice(
        spec=spec,
        start=0,
        stop=4,
        whole=False,
        codecs={"weight": to_json(Asymmetric(bits=8))},
        difference=to_json(Fitted(bits=4)),
        made_from="s000000000001-t00001-abcdef01",
    )
    encoder = ChunkEncoder(replace(some_intent(), base=None), [table], KeyFrames(MemoryStore(), in_memory=True))
    recorded = {"weight": [8, 0, 4]}
    chunk = FrameChunk(table=0, offset=0, length=16 + 32 + 128, rows=4, first=0, last=3, ids="U32", recorded=recorded)
    with pytest.raises(SaveFailed, match=r"made from checkpoint s000000000001-t00001-abcdef01, but .* stands on none"):
        encoder.encode(chunk, memoryview(np.array([0, 1, 2, 3], dtype=np.uint32).tobytes() + bytes(160)))
