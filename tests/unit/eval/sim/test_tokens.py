"""Simulated ids are equal exactly where the trace says that tokens are shared or kept."""

from eval.sim.tokens import Context, Ids
from eval.trace import Trajectory, Turn


def turn(prompt: int, new: int, output: int = 5, reset: bool = False) -> Turn:
    return Turn(
        kind="tool", prompt_tokens=prompt, new_input_tokens=new, output_tokens=output, gap_s=1.0, reset=reset
    )


def trajectory(name: str, *turns: Turn, shared: int = 10) -> Trajectory:
    return Trajectory(
        trajectory_id=name,
        session_group=name,
        source="test",
        turns=list(turns),
        shared_prefix_id="system" if shared else None,
        shared_prefix_tokens=shared,
    )


def test_first_prompts_share_the_prefix_and_nothing_else():
    ids = Ids()
    one, kept = Context(ids, trajectory("a", turn(30, 30))).prompt(turn(30, 30))
    two, _ = Context(ids, trajectory("b", turn(30, 30))).prompt(turn(30, 30))
    assert len(one) == 30 and kept == 0
    assert one[:10] == two[:10]
    assert not set(one[10:]) & set(two[10:])


def test_a_later_prompt_keeps_what_the_trace_says():
    ids = Ids()
    context = Context(ids, trajectory("a", turn(30, 30)))
    first, _ = context.prompt(turn(30, 30))
    context.answered(first, ids.fresh(5))
    second, kept = context.prompt(turn(40, 7))
    assert (kept, len(second)) == (33, 40)
    assert second[:30] == first
    assert len(set(second)) == 40


def test_a_reset_keeps_the_shared_prefix_only():
    ids = Ids()
    context = Context(ids, trajectory("a", turn(30, 30)))
    first, _ = context.prompt(turn(30, 30))
    context.answered(first, ids.fresh(5))
    second, kept = context.prompt(turn(25, 5, reset=True))
    assert kept == 10
    assert second[:10] == first[:10]
    assert not set(second[10:]) & set(first)


def test_no_prefix():
    ids = Ids()
    prompt, _ = Context(ids, trajectory("a", turn(8, 8), shared=0)).prompt(turn(8, 8))
    assert len(set(prompt)) == 8
