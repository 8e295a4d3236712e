import pytest

from eval.tokens import History, TokenSource
from eval.trace import Turn


def make_turn(prompt: int, new: int, output: int = 3, reset: bool = False) -> Turn:
    return Turn(kind="tool", prompt_tokens=prompt, new_input_tokens=new, output_tokens=output, reset=reset)


def test_same_owner_same_ids_and_a_longer_draw_continues_a_shorter_one() -> None:
    source = TokenSource(seed=3)
    ids = source.draw(500, "private", "a", 0)
    assert ids == TokenSource(seed=3).draw(500, "private", "a", 0)
    assert ids[:90] == source.draw(90, "private", "a", 0)
    assert ids != source.draw(500, "private", "b", 0)
    assert ids != source.draw(500, "private", "a", 1)
    assert ids != TokenSource(seed=4).draw(500, "private", "a", 0)


def test_ids_stay_in_range() -> None:
    ids = TokenSource(0, vocab_size=10, first_id=100).draw(2000, "x")
    assert set(ids) == set(range(100, 110))


@pytest.mark.parametrize(("vocab", "first"), [(1, 0), (8, -1)])
def test_impossible_range_is_refused(vocab: int, first: int) -> None:
    with pytest.raises(ValueError, match=r"vocab_size|first_id"):
        TokenSource(0, vocab, first)


def test_replay_rule() -> None:
    source = TokenSource(0)
    one, two = (History(source, name, "system", 20) for name in ("one", "two"))
    a, b = one.prompt(make_turn(30, 30)), two.prompt(make_turn(25, 25))
    assert (len(a), len(b)) == (30, 25)
    assert a[:20] == b[:20]
    assert a[20:25] != b[20:25]
    assert one.kept_tokens == 0

    one.extend([7, 8, 9])
    second = one.prompt(make_turn(40, 7))
    assert second[:33] == [*a, 7, 8, 9]
    assert one.kept_tokens == 33
    one.extend([1, 2, 3])
    # Stripped history: only 35 of 43 tokens are kept.
    third = one.prompt(make_turn(41, 6))
    assert third[:35] == second[:35]
    assert len(third) == 41


def test_reset_keeps_the_shared_prefix_only() -> None:
    history = History(TokenSource(0), "one", "system", 20)
    first = history.prompt(make_turn(60, 60))
    history.extend([1, 2, 3])
    after = history.prompt(make_turn(50, 10, reset=True))
    assert after[:20] == first[:20]
    assert after[20:40] != first[20:40]
    assert history.kept_tokens == 20
    assert len(after) == 50


def test_shared_prefix_longer_than_the_prompt_is_cut() -> None:
    assert len(History(TokenSource(0), "one", "system", 99).prompt(make_turn(5, 5))) == 5
