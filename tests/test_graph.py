"""benchmarks/graph.py reads a compiled program's kernels, and which waits for which."""

from typing import Any

import pytest

from programs import program

PROGRAM = """
%inner (a: f32[2]) -> f32[2] {
  ROOT %nothing = f32[2]{0} add(%a, %a)
}

%body.1 (state: (f32[2], f32[2])) -> (f32[2], f32[2]) {
  %state = (f32[2]{0}, f32[2]{0}) parameter(0)
  %x = f32[2]{0} get-tuple-element(%state), index=0
  %y = f32[2]{0} get-tuple-element(%state), index=1
  %gemm_fusion = f32[2]{0} fusion(%x), kind=kCustom, calls=%inner
  %pallas_call.1 = (f32[2]{0}, f32[2]{0}) custom-call(%gemm_fusion, /*index=1*/%y), backend_config={"a":"(%y"}
  %part = f32[2]{0} get-tuple-element(%pallas_call.1), index=1
  %early = f32[2]{0} fusion(%y), kind=kLoop, calls=%inner
  %last.2 = f32[2]{0} fusion(%part, %early), kind=kLoop, calls=%inner
  %within = f32[2]{0} while(%last.2), condition=%inner, body=%inner
  %seen = f32[2]{0} bitcast(%within)
  ROOT %both = (f32[2]{0}, f32[2]{0}) tuple(%seen, %early)
}

ENTRY %main (start: (f32[2], f32[2])) -> (f32[2], f32[2]) {
  ROOT %loop = (f32[2]{0}, f32[2]{0}) while(%start), condition=%inner, body=%body.1
}
"""


@pytest.fixture(scope="module")
def graph() -> Any:
    return program("benchmarks/graph.py")


def test_kernels_and_the_longest_chain_of_a_program(graph: Any) -> None:
    found = graph.graph(graph.instructions(PROGRAM))
    assert [kernel.name for kernel in found.kernels] == ["gemm_fusion", "pallas_call.1", "early", "last.2", "within"]
    assert found.kernels[1].reads == ("gemm_fusion", "y")
    # The one that waits for nothing may run beside the first of four.
    assert found.depths == [1, 2, 1, 3, 4]
    assert found.chain == 4
    assert found.widths(4) == [2, 1, 1, 1]
    assert found.widths(2) == [1.5, 1]
    assert found.widths(16) == [2, 1, 1, 1]


def test_a_program_without_a_loop_is_no_program_of_ours(graph: Any) -> None:
    with pytest.raises(AssertionError, match="no loop"):
        graph.instructions("ENTRY %main () -> f32[] {\n}\n")
