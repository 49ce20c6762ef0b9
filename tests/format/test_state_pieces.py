from __future__ import annotations

from holdfast.format.state_pieces import Piece, pieces_bytes, placed


def test_pieces_lie_one_after_another_each_padded_to_the_alignment_of_columns() -> None:
    pieces = [Piece(tensor=number, start=0, length=length) for number, length in enumerate((3, 8, 0, 9))]
    assert [offset for offset, _ in placed(pieces)] == [0, 8, 16, 16]
    assert [(offset, piece.tensor) for offset, piece in placed(pieces[:2], 64)] == [(64, 0), (72, 1)]
    assert pieces_bytes(pieces) == 32
