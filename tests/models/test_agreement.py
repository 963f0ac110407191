"Model, tokenizer and data are checked against each other: aligned where names prove what is meant, else an error."
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from salviz.data.texts import align_answers, encode

WORDS = '<s> </s> <pad> [UNK] [SEP] the film was moving and very good bad plot'.split()


def words_tokenizer(single=None, pair=None, longest=32, **special):
    "A tokenizer with a token for each of `WORDS`, and the templates `single` and `pair`"
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token='[UNK]'))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if single:
        marks = [(w, i) for i, w in enumerate(WORDS[:5])]
        backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=marks)
    special = dict(bos_token='<s>', eos_token='</s>', pad_token='<pad>', sep_token='[SEP]') | special
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token='[UNK]', model_max_length=longest, **special)


@pytest.mark.parametrize('pair', ['<s>:0 $A:0 <s>:1 $B:1', '<s>:0 $A:0 </s>:0 <s>:1 $B:1 </s>:1'])
def test_prompt_and_answer_have_one_begin_token_and_one_end_token(pair):
    tokenizer = words_tokenizer('<s> $A', pair)
    row, = encode(Dataset.from_dict(dict(text=['the film was'], target_text=['very good'])), tokenizer,
                  task='causal_lm')
    assert tokenizer.decode(row['input_ids']) == '<s> the film was very good </s>'
    assert row['input_ids'][:4] == tokenizer('the film was')['input_ids']
    assert row['labels'] == [-100]*3 + row['input_ids'][4:] + [-100]
    assert row['segments'] == [-1, 0, 0, 0, 1, 1, -1] and row['word_ids'] == [-1, 0, 1, 2, 3, 4, -1]
    for longest in range(6, 10):
        t, = align_answers(tokenizer, ['the film was moving and'], ['very good very good'], longest)
        assert len(t) == longest and t.tokens.count('<s>') == t.tokens.count('</s>') == 1 and t.tokens[-1] == '</s>'
        assert t.truncated == 9 + 2 - longest # nothing is cut that would have fitted


def test_a_separator_that_is_no_begin_token_stays_between_prompt_and_answer():
    tokenizer = words_tokenizer('$A', '$A [SEP] $B')
    assert align_answers(tokenizer, ['the film'], ['good'])[0].tokens == ['the', 'film', '[SEP]', 'good', '</s>']
