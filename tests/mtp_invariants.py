"""What must hold after every round of any decoder, as an `on_round` that asserts it."""

from mtp import Sampling, decode


class Checker:
    """`on_round` that asserts, after each round and for each sequence, what must hold in any decoder."""

    def __init__(self, prompts, max_new_tokens, eos=None):
        self.prompts, self.limit, self.eos = prompts, max_new_tokens, eos
        self.emitted = [1] * len(prompts)  # the prefill's token
        self.rounds = 0

    def __call__(self, record, context, cache):
        self.rounds += 1
        assert cache.lengths == [known - 1 for known in context.known], "KV length is tokens so far - 1"
        for entry in record.rows:
            row, new = entry.row, entry.emitted
            self.emitted[row] += new
            length = len(self.prompts[row])
            assert context.known[row] == length + self.emitted[row], "emitted tokens sum to the output's length"
            assert self.emitted[row] <= self.limit, "no more than max_new_tokens"
            assert entry.accepted <= entry.proposed
            output = context.tokens[row, length : context.known[row]].tolist()
            ended = output[-1] == self.eos or self.emitted[row] == self.limit
            assert 1 <= new <= entry.accepted + 1
            assert new == entry.accepted + 1 or ended, "accepted + 1 tokens unless cut"
            assert self.eos not in output[:-1], "nothing after EOS"


def checked(model, prompts, proposer, *, new=24, eos=None, sampling=None, **options):
    checker = Checker(prompts, new, eos)
    run = decode(
        model, prompts, proposer, max_new_tokens=new, eos=eos, sampling=sampling or Sampling(0.0), on_round=checker,
        **options,
    )  # fmt: skip
    assert checker.rounds == len(run.rounds)
    assert checker.emitted == [len(tokens) for tokens in run.tokens]
    for tokens in run.tokens:
        assert len(tokens) == new or tokens[-1] == eos
    return run
