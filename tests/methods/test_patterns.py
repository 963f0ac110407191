"""Patterns on batches agree with matrices written cell by cell from the paper's equations, for any position of the
padding"""
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from salviz.methods.patterns import as_pattern, looks_at_tokens, pattern_ids, pattern_target

PAD, CLS, SEP, DOT, SPACE_DOT = 0, 1, 2, 3, 4


class Vocabulary:
    cls_token_id, sep_token_id, bos_token_id, eos_token_id = CLS, SEP, None, None
    tokens = ['<pad>', '<s>', '</s>', '.', 'Ġ.', *(f'w{i}' for i in range(20))]
    def get_vocab(self): return {t: i for i, t in enumerate(self.tokens)}
    def convert_ids_to_tokens(self, ids): return [self.tokens[i] for i in ids]


def sentences():
    "Return texts of one to twelve tokens with no, one or several full stops"
    rng = np.random.default_rng(3)
    rows = [[CLS], [CLS, SEP], [CLS, DOT, SEP], [CLS, 7, 8, SEP], [CLS, 7, DOT, 9, SPACE_DOT, DOT, SEP]]
    return rows + [[CLS, *rng.integers(3, 25, n).tolist(), SEP] for n in (5, 8, 10)]


def padded(rows, side, width=None):
    width = width or max(map(len, rows))
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for b, r in enumerate(rows):
        at = slice(0, len(r)) if side == 'right' else slice(width - len(r), width)
        ids[b, at], mask[b, at] = torch.tensor(r), 1
    return dict(input_ids=ids, attention_mask=mask)


def reference(name, row, boundary, multiple):
    "Compute section 3.2 of Deshpande and Narasimhan (2020) entry by entry, in float64; None without the token"
    n = len(row)
    P = [[0.] * n for _ in range(n)]
    looked_at = {'delim': [CLS, SEP], 'delim:<s>': [CLS], 'delim:</s>': [SEP], 'period': [DOT, SPACE_DOT]}.get(name, [])
    m = sum(t in looked_at for t in row)
    if looked_at and m == 0: return None
    for p in range(n):
        for q in range(n):
            if name == 'next':
                if q == p + 1: P[p][q] = 1.
                elif p == n - 1 and boundary == 'uniform': P[p][q] = 1 / n
            elif name == 'prev':
                if q == p - 1: P[p][q] = 1.
                elif p == 0 and boundary == 'uniform': P[p][q] = 1 / n
            elif name == 'first': P[p][q] = 1. if q == 0 else 0.
            elif row[q] in looked_at: P[p][q] = 1 / m if multiple == 'uniform' else 1.
    return np.array(P, dtype=np.float64)


def ids_of(name): return pattern_ids(name, Vocabulary()) if looks_at_tokens(name) else None


@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('boundary', ['uniform', 'zero'])
@pytest.mark.parametrize('multiple', ['uniform', 'indicator'])
@pytest.mark.parametrize('name', ['next', 'prev', 'first', 'delim', 'delim:<s>', 'delim:</s>', 'period'])
def test_named_patterns_equal_the_matrices_of_the_paper(name, boundary, multiple, side):
    rows = sentences()
    batch = padded(rows, side, width=15)
    P, guided = pattern_target(name, batch, ids_of(name), boundary, multiple)
    assert P.shape == (len(rows), 15, 15) and guided.shape == (len(rows),)
    for b, row in enumerate(rows):
        expected = reference(name, row, boundary, multiple)
        assert bool(guided[b]) == (expected is not None)
        whole = np.zeros((15, 15))
        if expected is not None:
            start = 0 if side == 'right' else 15 - len(row)
            whole[start:start+len(row), start:start+len(row)] = expected
        np.testing.assert_allclose(P[b].numpy(), whole, rtol=1e-6, atol=0)


@pytest.mark.parametrize('name', ['next', 'prev', 'first', 'delim', 'delim:</s>', 'period'])
def test_patterns_do_not_depend_on_batch_or_padding(name):
    rows = sentences()
    together, _ = pattern_target(name, padded(rows, 'right', width=20), ids_of(name))
    for b, row in enumerate(rows):
        alone, _ = pattern_target(name, padded([row], 'left'), ids_of(name))
        assert torch.equal(together[b, :len(row), :len(row)], alone[0])


def test_patterns_equal_the_golden_vectors():
    cases = json.loads((Path(__file__).parents[1]/'golden.json').read_text())['pattern_matrix']
    assert cases
    for case in cases:
        ids = np.full(len(case['real']), 7) if case['occurs'] is None else np.where(case['occurs'], DOT, 7)
        batch = dict(input_ids=torch.tensor(ids)[None], attention_mask=torch.tensor(case['real'])[None].long())
        P, guided = pattern_target(case['name'], batch, torch.tensor([DOT]), case['boundary'], case['multiple'])
        assert bool(guided[0]) == (case['expected'] is not None)
        if case['expected'] is not None:
            np.testing.assert_allclose(P[0].numpy(), np.array(case['expected']), rtol=1e-6, atol=1e-7)


def test_custom_function_gets_real_tokens_and_pads_are_zero():
    seen = []
    def upwards(tokens):
        seen.append(tokens)
        return None if len(tokens) < 3 else np.triu(np.ones((len(tokens), len(tokens))))
    rows = sentences()
    P, guided = pattern_target(upwards, padded(rows, 'left', width=14), tokenizer=Vocabulary())
    assert seen == [Vocabulary().convert_ids_to_tokens(r) for r in rows]
    for b, row in enumerate(rows):
        n, start = len(row), 14 - len(row)
        assert bool(guided[b]) == (n >= 3)
        assert P[b, start:, start:].sum() == (n * (n + 1) / 2 if n >= 3 else 0) == P[b].sum()


def test_custom_matrix_is_cut_to_the_length_of_each_example():
    whole = torch.rand(14, 14, generator=torch.Generator().manual_seed(0))
    rows = sentences()
    for side in ('right', 'left'):
        P, guided = pattern_target(whole, padded(rows, side, width=14))
        assert guided.all()
        for b, row in enumerate(rows):
            n, start = len(row), 0 if side == 'right' else 14 - len(row)
            assert torch.equal(P[b, start:start+n, start:start+n], whole[:n, :n])
            assert P[b].sum().item() == pytest.approx(whole[:n, :n].sum().item(), rel=1e-6)


@pytest.mark.parametrize('bad, says', [
    ([[1., 0.]], 'must be a matrix'), ([[2., 0.], [0., 1.]], 'between 0 and 1'),
    ([[-.1, 0.], [0., 1.]], 'between 0 and 1'),
    ([[float('nan'), 0.], [0., 1.]], 'between 0 and 1')])
def test_invalid_matrix_is_rejected(bad, says):
    with pytest.raises(ValueError, match=says): as_pattern(bad)


def test_function_that_returns_the_wrong_size_raises():
    def too_small(tokens): return [[1.]]
    with pytest.raises(ValueError, match=r'the result of too_small must be a matrix of shape \[4, 4\]'):
        pattern_target(too_small, padded([[CLS, 7, 8, SEP]], 'right'), tokenizer=Vocabulary())


def test_unknown_delimiter_is_rejected():
    assert pattern_ids('delim', Vocabulary()).tolist() == [CLS, SEP]
    assert pattern_ids('delim:</s>', Vocabulary()).tolist() == [SEP]
    for token in ('.', '[SEP]', ''):
        with pytest.raises(ValueError, match="is not a delimiter of Vocabulary; available: 'delim:<s>', 'delim:</s>'"):
            pattern_ids(f'delim:{token}', Vocabulary())
    with pytest.raises(ValueError, match="pattern 'delim:</s>' needs ids"):
        pattern_target('delim:</s>', padded([[CLS, SEP]], 'right'))


def test_unknown_pattern_is_rejected_with_available_ones():
    with pytest.raises(ValueError, match='available: next, prev, first, delim, period'):
        pattern_target('diagonal', padded([[CLS]], 'right'))


def test_full_stop_is_found_in_all_kinds_of_vocabularies():
    class Tokenizer:
        def __init__(self, *tokens): self.tokens = tokens
        def get_vocab(self): return {t: i for i, t in enumerate(self.tokens)}
    assert pattern_ids('period', Tokenizer('a', '.', '##.', '..')).tolist() == [1, 2]
    assert pattern_ids('period', Tokenizer('Ġ', 'Ġ.', '.', 'Ġ...')).tolist() == [1, 2]
    assert pattern_ids('period', Tokenizer('▁.', '▁', '▁a.')).tolist() == [0]
    with pytest.raises(ValueError, match='has no token for this pattern'): pattern_ids('period', Tokenizer('a', '!'))


def test_patterns_keep_the_default_precision():
    torch.set_default_dtype(torch.float64)
    try: P, _ = pattern_target('next', padded([[CLS, 7, SEP]], 'right'))
    finally: torch.set_default_dtype(torch.float32)
    assert P.dtype == torch.float64 and P[0, -1, 0].item() == 1/3


def test_patterns_use_the_ids_in_the_batch():
    before, after = [CLS, 7, DOT, 9, SEP], [CLS, DOT, 8, 9, SEP] # one full stop is hidden, one is new
    for row in (before, after):
        P, _ = pattern_target('period', padded([row], 'right'), ids_of('period'))
        np.testing.assert_array_equal(P[0].numpy(), reference('period', row, 'uniform', 'uniform'))
