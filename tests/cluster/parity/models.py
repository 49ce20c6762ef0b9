"""Models and rings for tests of parity: tables of several widths, some of them with fewer rows than servers."""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.cluster.placement import Placement
from holdfast.cluster.plan import DenseSpec, ModelPlan, TableSpec
from holdfast.erasure.ring import Ring
from holdfast.erasure.seating import seat
from holdfast.policy import Uniform


@st.composite
def placements(draw: st.DrawFn) -> tuple[Placement, Ring]:
    """A model on servers, and one of their rings."""
    data, parity = draw(st.sampled_from([(1, 1), (2, 1), (4, 1), (1, 2), (3, 2)]))
    servers = draw(st.integers(data + parity, 2 * (data + parity) + 1))
    shapes = draw(st.lists(st.tuples(st.sampled_from([0, 1, 3, 40, 233]), st.sampled_from([4, 9])), max_size=4))
    tables = [
        TableSpec(name=f"t{number}.weight", rows=rows, width=width, init=Uniform(-1, 1))
        for number, (rows, width) in enumerate(shapes)
    ]
    dense = (DenseSpec(name="mlp", shape=(5, 3)), DenseSpec(name="bias", shape=(5,)))
    placement = Placement(ModelPlan(tables=tuple(tables), dense=dense), servers)
    return placement, draw(st.sampled_from(seat(servers, data=data, parity=parity).rings))
