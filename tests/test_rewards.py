"""Rewards by rule, as TRL calls them."""

import inspect

import pytest
from claimwise.trainer.rewards import answer_reward, answers_match, final_answer, format_reward


@pytest.mark.parametrize(("response", "wanted"), [("Answer: 3 5", "3 5"), ("\\boxed{7}", "7"), ("It is B.", None)])
def test_the_form_is_right_where_a_final_answer_is_found(response, wanted):
    assert final_answer(response) == wanted
    assert format_reward([response]) == [float(wanted is not None)]


def test_the_matching_rules_are_the_ones_of_eval():
    from claimwise.eval import answers

    assert answers_match is answers.answers_match and final_answer is answers.final_answer


def test_rewards_of_text_and_of_conversations():
    texts = ["Answer: B", "Answer: C", "no mark", "Answer: a cat on a mat", "Answer: B", "Answer: B"]
    answers = ["B", "B", "B", "the cat sits on the mat", None, " "]
    rewards = [1.0, 0.0, 0.0, None, None, None]  # right, wrong, absent, no rule, no answer known (twice)
    assert answer_reward(texts, answers) == rewards
    conversations = [[{"role": "assistant", "content": text}] for text in texts]
    assert answer_reward(conversations, answers) == rewards
    assert format_reward(texts) == format_reward(conversations) == [1, 1, 0, 1, 1, 1]


def test_called_as_trl_calls_them():
    """TRL passes completions, every column of the data set and a few things of its own by name."""
    known = {"prompts": ["q"], "completion_ids": [[1]], "answer": ["B"], "images": [[]], "trainer_state": None}
    for reward in (answer_reward, format_reward):
        assert reward(completions=["Answer: B"], **known) == [1.0]
        assert any(p.kind is p.VAR_KEYWORD for p in inspect.signature(reward).parameters.values())
