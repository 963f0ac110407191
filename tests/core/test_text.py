"""salviz.core.text on tokenizers of every kind, hostile text and random Unicode"""
import random
import unicodedata

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from salviz.core.assets import asset
from salviz.core.text import (_spread_words, align, align_batch, continued, find_words, pool_map, pool_words,
                              rationale_flags)

LINES = ["It's not just bad, it's awful: a film without a plot!",
         'The acting was thrilling, the ending unforgettable...', '(Really bad bad bad.)',
         'naïve café cafe\u0301 電影 电影很好 カメラ 한국 영화', 'مرحبا بالعالم שלום עולם', 'नमस्ते दुनिया',
         '😀 👍🏽 👩\u200d👧 <b>bold</b> &amp; 1,000.50']*6
HOSTILE = ['', ' ', '\n\t  \u3000', '\u200b', '\u200b\u200d\ufeff', '\u0301', ' \u0301\u0301', 'bad bad bad bad',
           'bad\u00adly b\u200bad',
           '😀', '😀😀😀', '👩\u200d👧\u200d👦', '👍🏽!', '🇩🇪🇫🇷',
           '🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f', '1\ufe0f\u20e3',
           'cafe\u0301 café', 'Z̸̢͎a̷͙l̵̠g̶͉o̸', '电影很好。', 'カﾞメラ ｶﾞﾒﾗ', '한국 영화', '\u1112\u1161\u11ab', 'مرحبا بالعالم',
           'می\u200cخواهم',
           'שלום!', 'abc\u202edef\u202c', 'क्\u200dष नमस्ते', 'สวัสดีครับ', 'a   b \n\n c\t', '\xa0a\xa0',
           '<script>alert("x")</script>',
           '&lt;b&gt;', '<b onclick=\'x\'>', '[SEP] </s> <unk> [MASK] <0x41>', '▁a ▁ Ġb ##c', 'ﬁne ½ Ⅷ ™ …',
           'x\x00y\x07z\x1b',
           '\ue000 \U000f0000', '\ufffd', "rock 'n' roll—don’t", '3.14 1,000.50 v1.2 3. .5 a.b',
           'mother-in-law -- self-', '_snake_case_',
           'ǅ İstanbul ﬀ ẞ', '\U0001d538\U0001d539', 'a' * 300, 'é' * 120]


def fast(tokenizer, **kwargs): return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **kwargs)


def bert(first, second, ids):
    pair = f'{first} $A {second} $B:1 {second}:1'
    return processors.TemplateProcessing(single=f'{first} $A {second}', pair=pair,
                                         special_tokens=[(first, ids[0]), (second, ids[1])])


def wordpiece(lowercase=True):
    t = Tokenizer(models.WordPiece(unk_token='[UNK]'))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(LINES, trainers.WordPieceTrainer(vocab_size=220,
                                                           special_tokens=['[PAD]', '[UNK]', '[CLS]', '[SEP]']))
    t.post_processor = bert('[CLS]', '[SEP]', (2, 3))
    return fast(t, pad_token='[PAD]', unk_token='[UNK]', cls_token='[CLS]', sep_token='[SEP]')


def byte_bpe(roberta, vocab_size=360):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=not roberta), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=['<s>', '<pad>', '</s>'],
                                                     initial_alphabet=alphabet))
    if roberta:
        t.post_processor = processors.RobertaProcessing(('</s>', 2), ('<s>', 0), trim_offsets=True,
                                                        add_prefix_space=False)
    else: t.post_processor = processors.ByteLevel(trim_offsets=False)
    return fast(t, pad_token='<pad>', eos_token='</s>')


def unigram():
    t = Tokenizer(models.Unigram())
    t.normalizer, t.pre_tokenizer, t.decoder = normalizers.NFKC(), pre_tokenizers.Metaspace(), decoders.Metaspace()
    t.train_from_iterator(LINES, trainers.UnigramTrainer(vocab_size=150, special_tokens=['<pad>', '</s>', '<unk>'],
                                                         unk_token='<unk>'))
    t.post_processor = processors.TemplateProcessing(single='$A </s>', pair='$A </s> $B </s>',
                                                     special_tokens=[('</s>', 1)])
    return fast(t, pad_token='<pad>', eos_token='</s>', unk_token='<unk>')


def byte_fallback():
    "Create a tokenizer like Llama 2: no pre-tokenizer, a normaliser replaces spaces, unknown characters become bytes"
    vocab = ['<unk>', '<s>', '</s>', *(f'<0x{b:02X}>' for b in range(256)), '▁', *'abdehilnstuwof.,!', '▁b', '▁ba',
             '▁bad', 'th', '▁th']
    merges = [('▁', 'b'), ('▁b', 'a'), ('▁ba', 'd'), ('t', 'h'), ('▁', 'th')]
    t = Tokenizer(models.BPE({v: i for i, v in enumerate(vocab)}, merges, unk_token='<unk>', fuse_unk=True,
                             byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
    t.decoder = decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(' ', 1, 0)])
    t.post_processor = processors.TemplateProcessing(single='<s> $A', pair='<s> $A <s> $B', special_tokens=[('<s>', 1)])
    return fast(t, bos_token='<s>', eos_token='</s>', unk_token='<unk>')


def end_of_word():
    "Create a tokenizer like CLIP and the first GPT: a suffix ends the word"
    t = Tokenizer(models.BPE(unk_token='<unk>', end_of_word_suffix='</w>'))
    t.pre_tokenizer, t.decoder = pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder()
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=260, special_tokens=['<unk>', '</s>'],
                                                     end_of_word_suffix='</w>'))
    return fast(t, unk_token='<unk>', eos_token='</s>')


class Halves:
    "A pre-tokenizer written in Python, which has no JSON description"
    def halves(self, i, s): return [p for p in (s[:len(str(s))//2], s[len(str(s))//2:]) if len(str(p))]
    def pre_tokenize(self, pretok): pretok.split(self.halves)


def custom():
    tokenizer = wordpiece(lowercase=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(),
                                                                         pre_tokenizers.PreTokenizer.custom(Halves())])
    return tokenizer


def packaged():
    "Return the tokenizer of the packaged encoder, or a similar one if it is not fetched"
    try: return AutoTokenizer.from_pretrained(asset('minilm'))
    except FileNotFoundError: return wordpiece()


MAKERS = dict(wordpiece=wordpiece, cased=lambda: wordpiece(False), roberta=lambda: byte_bpe(True),
              gpt2=lambda: byte_bpe(False), unigram=unigram,
              byte_fallback=byte_fallback, end_of_word=end_of_word, custom=custom, packaged=packaged)
LOSSLESS = ('roberta', 'gpt2', 'byte_fallback')   # no character is ever dropped or unknown


@pytest.fixture(scope='module', params=MAKERS)
def tok(request):
    "Return each kind of tokenizer in turn"
    tokenizer = MAKERS[request.param]()
    tokenizer.kind = request.param
    return tokenizer


@pytest.fixture(scope='module')
def wp(): return wordpiece()


@pytest.fixture(scope='module')
def roberta(): return byte_bpe(True)


ALPHABETS = ['abc', 'aB1é.', " '’-.,3", '电影カのー', 'مرحبا שלום', 'क्षिनमस्ते', '😀🎬👍🏽\u200d❤\ufe0f🇩🇪',
             'e\u0301\u0308\u200b\u200c\u00ad\u2060', ' \t\n\u3000\xa0', '<>&"/=\\', 'ﬁ½İß①',
             '\x00\x1b\u202e\u2066\ufeff',
             '한국\u1112\u1161']


def random_text(rng):
    "Return a few runs of characters from different alphabets, sometimes with arbitrary code points"
    out = []
    for _ in range(rng.randint(0, 7)):
        if rng.random() < .15:
            out.append(chr(rng.choice([rng.randrange(0xd800), rng.randrange(0xe000, 0x110000),
                                       rng.randint(0x1f300, 0x1faff)])))
        else: out += rng.choices(rng.choice(ALPHABETS), k=rng.randint(1, 6))
        if rng.random() < .4: out.append(' ')
    return ''.join(out)


def texts(seed, n): return [random_text(rng) for rng in [random.Random(seed)] for _ in range(n)]


def is_visible(c):
    "Return whether words must cover a character: no white space, control or format character (except tags of flags)"
    category, is_tag = unicodedata.category(c), 0xe0020 <= ord(c) <= 0xe007f
    return not (c.isspace() or category in ('Cc', 'Zs', 'Zl', 'Zp') or (category == 'Cf' and not is_tag))


def word_at(tt, segment, i):
    return next((w for w, (s, a, b) in enumerate(tt.word_spans) if s == segment and a <= i < b), -1)


# words

@pytest.mark.parametrize('seed', range(4))
def test_words_are_disjoint_in_order_and_cover_every_visible_character(seed):
    for text in texts(seed, 400) + HOSTILE:
        spans = find_words(text)
        covered = np.zeros(len(text), int)
        for (a, b), following in zip(spans, spans[1:] + [(len(text), None)]):
            assert a < b <= following[0]
            assert is_visible(text[a]) and is_visible(text[b - 1]), (text, a, b)
            covered[a:b] += 1
        for c, n in zip(text, covered): assert n == 1 if is_visible(c) else n <= 1


def test_words_do_not_depend_on_text_beyond_a_space():
    rng = random.Random(5)
    for text in texts(6, 300):
        other = random_text(rng)
        shift = len(text) + 1
        assert find_words(f'{text} {other}') == find_words(text) + [(a + shift, b + shift)
                                                                    for a, b in find_words(other)]


def test_letters_form_words_and_symbols_are_single():
    for text in texts(7, 400):
        inside = {i for a, b in find_words(text) for i in range(a + 1, b)}   # characters joined to the preceding one
        for i in range(1, len(text)):
            before, here = text[i - 1], text[i]
            if before in 'abcB1é' and here in 'abcB1é': assert i in inside
            if here in '<>&"/=\\电影カの': assert i not in inside or text[i - 1] == '\u200d'
            if unicodedata.category(here)[0] == 'M' and is_visible(before): assert i in inside


@pytest.mark.parametrize('text, words', [
    ("don't won’t 'tis dogs'", ["don't", 'won’t', "'", 'tis', 'dogs', "'"]),
    ('well-made -- re- e‑mail', ['well-made', '-', '-', 're', '-', 'e‑mail']),
    ('3.14 1,000.50 3. .5 a.b 1.2.3', ['3.14', '1,000.50', '3', '.', '.', '5', 'a', '.', 'b', '1.2.3']),
    ('电影, カメラ 한국', ['电', '影', ',', 'カ', 'メ', 'ラ', '한국']),
    ('สวัสดีครับ', ['ส', 'วั', 'ส', 'ดี', 'ค', 'รั', 'บ']), ('น้ำ ๑๒๓,๔๕๖', ['น้ำ', '๑๒๓,๔๕๖']),
    ('ສະບາຍດີ ນ້ຳ', ['ສ', 'ະ', 'ບ', 'າ', 'ຍ', 'ດີ', 'ນ້ຳ']), ('ខ្មែរ ស្ត្រី', ['ខ្មែ', 'រ', 'ស្ត្រី']),
    ('မြန်မာ မန္တလေး ၂၀', ['မြ', 'န်', 'မာ', 'မ', 'န္တ', 'လေး', '၂၀']), ('ꆈꌠ', ['ꆈ', 'ꌠ']),
    ('ไทย-ลาว wifiฟรี', ['ไ', 'ท', 'ย', '-', 'ล', 'า', 'ว', 'wifi', 'ฟ', 'รี']),
    ('\u17d2 ก\u17d2a', ['\u17d2', 'ก\u17d2', 'a']),
    ('3月 人々', ['3', '月', '人', '々']),
    ('नमस्ते क्\u200dष', ['नमस्ते', 'क्\u200dष']),
    ('مرحبا, שלום', ['مرحبا', ',', 'שלום']),
    ('b\u00adad b\u200bad', ['b\u00adad', 'b', 'ad']),
    ('👩\u200d👧\u200d👦👍🏽❤\ufe0f🇩🇪🇫', ['👩\u200d👧\u200d👦', '👍🏽', '❤\ufe0f', '🇩🇪', '🇫']),
    ('🏴\U000e0067\U000e007f x', ['🏴\U000e0067\U000e007f', 'x']),
    ('<i>a</i>&amp;', ['<', 'i', '>', 'a', '<', '/', 'i', '>', '&', 'amp', ';']),
    ('snake_case C++ $5 #a', ['snake', '_', 'case', 'C', '+', '+', '$', '5', '#', 'a']),
    ('\u0301a', ['\u0301', 'a']), ('', []), (' \t\u200b\x00', [])])
def test_words_match_expected_segmentations(text, words): assert [text[a:b] for a, b in find_words(text)] == words


def test_finding_words_takes_linear_time_on_long_runs():
    for run in ("'", 'a-', 'a\u00ad', '1.', '👩\u200d', '\u200c\u0301', 'a\u200c\u200c', '\U0001f1e6', '\u0301'):
        assert find_words('a' + run * 60_000)
    assert find_words('a' + '\u00ad' * 60_000) == [(0, 1)]


# alignment

def check_alignment(tok, tt):
    n, W = len(tt.tokens), len(tt.words)
    assert len(tt) == n == len(tt.labels) == len(tt.input_ids) == len(tt.segments) == len(tt.word_ids) == len(
        tt.is_special)
    assert tt.offsets.shape == (n, 2) and W == len(tt.word_spans) == len(tt.has_tokens)
    assert [tt.texts[s][a:b] for s, a, b in tt.word_spans] == tt.words
    assert (tt.is_special == (tt.segments < 0)).all() and (tt.word_ids[tt.is_special] == -1).all()
    for segment in range(len(tt.texts)):
        ids = tt.word_ids[(tt.segments == segment) & (tt.word_ids >= 0)]
        assert (np.diff(ids) >= 0).all()   # words appear in the order of the text
        assert all(tt.word_spans[w][0] == segment for w in ids)
    for i in np.flatnonzero(~tt.is_special):
        start, end = tt.offsets[i]
        covered = tt.texts[tt.segments[i]][start:end]
        words = [w for w in (word_at(tt, tt.segments[i], c) for c in range(start, end)) if w >= 0]
        if tt.word_ids[i] >= 0: assert {*words} == {tt.word_ids[i]}
        else:
            assert (not any(map(is_visible, covered))
                    or tt.labels[i].strip('␣↵⇥') == ''), (tok.kind, tt.tokens[i], covered)
    for label in tt.labels:
        assert label and label == label.strip()
        assert not any(unicodedata.category(c) in ('Cc', 'Cf') and c not in '\u200c\u200d' for c in label), ascii(label)


@pytest.mark.sample(6)
@pytest.mark.parametrize('seed', range(3))
def test_random_tokens_belong_to_one_word_or_are_blank(tok, seed):
    singles, firsts, seconds = texts(seed, 120) + HOSTILE, texts(seed + 10, 40), texts(seed + 20, 40)
    for t, tt in zip(singles, align_batch(tok, singles)):
        assert tt.texts == (t,) and tt.truncated == 0
        assert tt.input_ids.tolist() == tok(t)['input_ids']
        check_alignment(tok, tt)
    for a, b, tt in zip(firsts, seconds, align_batch(tok, firsts, seconds)):
        assert tt.texts == (a, b) and tt.input_ids.tolist() == tok([a], [b])['input_ids'][0]
        check_alignment(tok, tt)


@pytest.mark.parametrize('tok', LOSSLESS, indirect=True)
@pytest.mark.parametrize('seed', range(3))
def test_lossless_tokenizers_cover_every_word(tok, seed):
    # a typed ▁ is a space where ▁ stands for spaces
    for tt in align_batch(tok, [t.replace('▁', '') for t in texts(seed, 120) + HOSTILE]):
        covered = np.zeros(len(tt.texts[0]), bool)
        for start, end in tt.offsets[~tt.is_special]: covered[start:end] = True
        for w, (_, a, b) in enumerate(tt.word_spans):
            assert tt.has_tokens[w], (tok.kind, tt.texts[0], tt.words[w], [*zip(tt.tokens, tt.offsets.tolist())])
            visible = [is_visible(c) for c in tt.texts[0][a:b]]
            assert covered[a:b][visible].all(), (tok.kind, tt.texts)


def merged_by_hand(tt):
    "Return the spans of the words of `tt`, merged naively for each token that overlaps several"
    sets = [{w} for w in range(len(tt.unmerged_spans))]
    for i in np.flatnonzero(~tt.is_special):
        if tt.labels[i].strip('␣↵⇥') == '': continue
        touched = {w for w, (s, a, b) in enumerate(tt.unmerged_spans) if s == tt.segments[i]
                   for c in range(*tt.offsets[i]) if a <= c < b}
        mine = [one for one in sets if one & touched]
        if mine: sets = [one for one in sets if one not in mine] + [set().union(*mine)]
    spans = [[tt.unmerged_spans[w] for w in range(min(one), max(one) + 1)] for one in sets]
    return sorted((some[0][0], some[0][1], some[-1][2]) for some in spans)


@pytest.mark.sample(4)
@pytest.mark.parametrize('seed', range(2))
def test_only_words_that_share_a_token_are_merged(tok, seed):
    tok = MAKERS[tok.kind]() # others use the fixture without these markers
    tok.add_special_tokens({'additional_special_tokens': ['<|user|>', 'ab <b>']})
    marked = [text + rng.choice(['<|user|>', ' ab <b>x', '...', '']) + other for rng in [random.Random(seed)]
              for text, other in zip(texts(seed + 70, 40), texts(seed + 80, 40))]
    for tt in align_batch(tok, [*marked, *HOSTILE], [*HOSTILE, *marked]):
        check_alignment(tok, tt)
        assert tt.word_spans == merged_by_hand(tt), tt.texts
        assert [text[a:b] for text in tt.texts for a, b in find_words(text)] == [tt.texts[s][a:b]
                                                                              for s, a, b in tt.unmerged_spans]
    assert align(tok, 'a <|user|> b').words == ['a', '<|user|>', 'b']


@pytest.mark.parametrize('how', ['sum', 'mean', 'max', 'first'])
def test_merged_word_gets_its_token_value_and_sums_keep_the_total(how):
    tok = byte_bpe(True, vocab_size=600)
    tt = align(tok, 'unforgettable... 电影很好')
    values = np.random.default_rng(0).standard_normal((2, len(tt)))
    pooled = pool_words(values, tt.word_ids, len(tt.words), how)
    assert tt.words == ['unforgettable', '...', '电影很好'] and (pooled != 0).all()
    assert (tt.word_ids >= 0).tolist() == (~tt.is_special).tolist()
    if how == 'sum': np.testing.assert_allclose(pooled.sum(-1), values[:, ~tt.is_special].sum(-1), rtol=1e-12)
    dots = tt.tokens.index('...')
    np.testing.assert_array_equal(pooled[:, 1], values[:, dots])


def test_words_do_not_depend_on_truncation():
    tok = byte_bpe(True, vocab_size=600)
    text = 'unforgettable... bad ... 电影很好'
    full = align(tok, text)
    assert len(full.words) < len(full.unmerged_spans)
    for side in ('right', 'left'):
        tok.truncation_side = side
        for max_length in range(3, len(full)):
            tt = align(tok, text, max_length=max_length)
            check_alignment(tok, tt)
            assert tt.words == full.words and tt.unmerged_spans == full.unmerged_spans
            at = full.word_ids[1:max_length - 1] if side == 'right' else full.word_ids[len(full) - max_length + 1:-1]
            assert tt.word_ids[1:-1].tolist() == at.tolist()


def test_given_words_that_share_a_token_are_merged():
    tok = wordpiece()
    tok.add_tokens(['bad film'])
    tt = align(tok, ['bad', 'film', '', 'plot'])
    assert tt.words == ['bad film', '', 'plot'] and tt.word_ids.tolist() == [-1, 0, 2, -1]
    assert rationale_flags(tt, words=[0, 1, 0, 0]).tolist() == [False, True, False, False]


def test_generated_tokens_belong_to_one_word_each():
    tok = byte_bpe(False, vocab_size=600)
    tok.add_special_tokens({'additional_special_tokens': ['<|user|>']})
    whole = align(tok, 'a film... unforgettable... 电影很好 <|user|> 😀')
    k = whole.tokens.index('...') + 1
    text = tok.decode(whole.input_ids[:k])
    tt = continued(tok, align(tok, text), whole.input_ids[k:].tolist())
    assert tt.texts[0] == text and tt.words[:3] == ['a', 'film', '...'] and '...' in tt.words[3:]
    assert '电影很好' in tt.words and tt.tokens == whole.tokens
    check_alignment(tok, tt)


def test_batches_match_single_texts(tok):
    batch = texts(30, 20)
    for text, together in zip(batch, align_batch(tok, batch)):
        alone = align(tok, text)
        assert alone.tokens == together.tokens
        assert alone.labels == together.labels
        assert (alone.word_ids == together.word_ids).all()
    assert align_batch(tok, []) == []


def test_repeated_words_are_distinguished_by_position(tok):
    tt = align(tok, 'bad bad bad film bad')
    assert tt.words == ['bad', 'bad', 'bad', 'film', 'bad'] and tt.has_tokens.all()
    for w, (_, a, b) in enumerate(tt.word_spans):
        for start, end in tt.offsets[tt.word_ids == w]: assert tt.texts[0][start:end].strip() in tt.texts[0][a:b]


def test_an_empty_text_has_special_tokens_only(tok):
    tt = align(tok, '')
    assert len(tt) == tok.num_special_tokens_to_add()
    assert tt.words == []
    assert tt.is_special.all()
    assert tt.offsets.shape == (len(tt), 2)
    assert pool_words(np.ones(len(tt)), tt.word_ids).shape == (0,)
    assert rationale_flags(tt, words=[]).tolist() == [False]*len(tt)


def test_truncation_keeps_a_prefix_and_counts_the_tokens_cut(tok):
    text = 'bad film bad film naïve plot'
    full, specials = align(tok, text), tok.num_special_tokens_to_add()
    for max_length in range(specials + 1, len(full) + 2):
        tt = align(tok, text, max_length=max_length)
        check_alignment(tok, tt)
        assert len(tt) == min(max_length, len(full)) and tt.truncated == len(full) - len(tt)
        assert tt.words == full.words   # all words are included, so that human flags match
        kept = ~tt.is_special
        assert (tt.word_ids[kept] == full.word_ids[~full.is_special][:kept.sum()]).all()
    assert not align(tok, text, max_length=specials + 1).has_tokens.all()


def test_truncated_pairs_keep_both_segments_apart(tok):
    full, room = align(tok, 'bad film bad film', 'naïve plot'), tok.num_special_tokens_to_add(pair=True)
    tt = align(tok, 'bad film bad film', 'naïve plot', max_length=room + 4)
    check_alignment(tok, tt)
    assert len(tt) == room + 4 and tt.truncated == len(full) - len(tt) and set(tt.segments) >= {0, 1}


def test_only_long_texts_of_a_batch_are_cut(tok):
    texts = ['bad', 'bad film '*20, 'bad']
    limit = len(align(tok, 'bad film bad'))
    short, long, again = align_batch(tok, texts, max_length=limit)
    assert short.truncated == again.truncated == 0
    assert long.truncated > 0
    assert len(long) == limit
    assert short.tokens == again.tokens
    tok(texts)   # the tokenizer keeps no truncation settings
    assert align(tok, texts[1]).truncated == 0


def test_given_words_are_tokenised_as_running_text(tok):
    words = ['do', "n't", 'well-made', '电影', '...', '😀', 'bad bad']
    tt = align(tok, words)
    check_alignment(tok, tt)
    assert tt.words == words and tt.texts == (' '.join(words),)
    assert tt.input_ids.tolist() == tok(' '.join(words))['input_ids']
    pair = align(tok, words, ['bad', ''])
    assert pair.words == [*words, 'bad', ''] and pair.word_spans[-2:] == [(1, 0, 3), (1, 4, 4)]
    assert align(tok, []).words == []


def test_labels_show_letters_and_never_a_tokenizers_spelling(tok):
    tt = align(tok, 'The film was thrilling, bad!')
    letters = ''.join(l for l, s in zip(tt.labels, tt.is_special) if not s and l != '␣')
    assert letters.lower().replace('[unk]', '') in ('thefilmwasthrilling,bad!', 'the')
    assert not any(c in ''.join(tt.labels) for c in 'Ġ▁#') and '</w>' not in letters


@pytest.mark.parametrize('tok', LOSSLESS, indirect=True)
def test_html_stays_text(tok):
    tt = align(tok, '<b>bad</b>')
    assert ''.join(l for l, s in zip(tt.labels, tt.is_special) if not s).replace('␣', '') == '<b>bad</b>'


@pytest.mark.parametrize('tok', LOSSLESS, indirect=True)
def test_parts_of_a_character_are_labelled_with_it_and_numbered(tok):
    tt = align(tok, 'bad 🎬🎬 bad')
    labels = [l for l in tt.labels if '🎬' in l]
    assert labels[:2] == ['🎬₁', '🎬₂'] and labels.count('🎬₁') == 2 and len(labels) > 4
    assert len(set(tt.word_ids[[i for i, l in enumerate(tt.labels) if '🎬' in l]])) == 2


def test_labels_of_byte_level_tokens_are_their_text():
    tok = byte_bpe(True)
    for text in texts(40, 200):
        tt = align(tok, text)
        for label, token, (start, end), special in zip(tt.labels, tt.tokens, tt.offsets, tt.is_special):
            if special: assert label == token
            # part of a character: its visible form
            elif label[-1] in '₀₁₂₃₄₅₆₇₈₉': assert label[0] in ('◌', 'U', '␣', *text[start:end])
            elif text[start:end].isprintable() and label[0] != '◌':
                assert label in (text[start:end].strip(), '␣'*len(token))


def test_invisible_tokens_get_a_visible_label(roberta):
    assert align(roberta, 'a\u200bb').labels[2].startswith('U+200B')
    labels = align(roberta, 'a\n\n b\t  c').labels
    assert '↵' in ''.join(labels) and '⇥' in ''.join(labels) and '␣' in ''.join(labels)
    assert '\u202e' not in ''.join(align(roberta, 'a\u202eb').labels)
    assert align(roberta, 'x\u0308').labels[2:4] == ['◌\u0308₁', '◌\u0308₂']


def test_added_tokens_are_labelled_verbatim():
    tok = byte_bpe(True)
    tok.add_tokens(['<é>', 'Ġx'])
    assert [l for l in align(tok, 'bad <é>Ġx').labels if l in ('<é>', 'Ġx')] == ['<é>', 'Ġx']


def test_byte_fallback_spells_whole_and_partial_characters():
    tt = align(byte_fallback(), 'bad\nZé')
    assert tt.tokens[-4:] == ['<0x0A>', '<0x5A>', '<0xC3>', '<0xA9>']
    assert tt.labels[-4:] == ['↵', 'Z', 'é₁', 'é₂'] and tt.word_ids[-4:].tolist() == [-1, 1, 1, 1]


def test_whitespace_tokens_belong_to_no_word():
    tt = align(unigram(), '电 bad')
    blank = [i for i, t in enumerate(tt.tokens) if t == '▁']
    assert blank and tt.offsets[blank[0]].tolist() == [0, 1]   # the tokenizer reports that it covers the ideograph
    assert (tt.word_ids[blank] == -1).all()


def test_special_tokens_typed_in_a_text_are_text(wp):
    tt = align(wp, 'bad [SEP] bad')
    assert tt.tokens == ['[CLS]', 'bad', '[SEP]', 'bad', '[SEP]']
    assert tt.is_special.tolist() == [True, False, False, False, True] and tt.segments.tolist() == [-1, 0, 0, 0, -1]
    assert tt.words == ['bad', '[SEP]', 'bad'] and tt.word_ids.tolist() == [-1, 0, 1, 2, -1]


def test_left_truncation_is_respected():
    tok = wordpiece()
    tok.truncation_side = 'left'
    tt = align(tok, 'bad film plot', max_length=3)
    assert tt.labels[1] == 'plot' and tt.word_ids.tolist() == [-1, 2, -1] and tt.truncated == 2


# pooling

def test_pooling_and_spreading_are_inverse_on_words_with_tokens(tok):
    rng = np.random.default_rng(0)
    for tt in align_batch(tok, texts(50, 60)):
        values, has = rng.standard_normal((2, 3, len(tt.words))), tt.has_tokens
        spread = _spread_words(values, tt.word_ids, fill=np.nan)
        assert spread.shape == (2, 3, len(tt)) and np.isnan(spread[..., tt.word_ids < 0]).all()
        for how in ('mean', 'max', 'first'):
            back = pool_words(spread, tt.word_ids, len(tt.words), how)
            np.testing.assert_allclose(back[..., has], values[..., has])
            assert not back[..., ~has].any()
        tokens = rng.standard_normal((2, len(tt)))
        np.testing.assert_allclose(pool_words(tokens, tt.word_ids, len(tt.words)).sum(-1),
                                   tokens[:, tt.word_ids >= 0].sum(-1), atol=1e-12)


def test_pooling_equals_a_loop_over_words():
    rng = np.random.default_rng(1)
    loops = dict(sum=sum, mean=lambda v: sum(v)/len(v), max=max, first=lambda v: v[0])
    for _ in range(50):
        n, W = int(rng.integers(1, 12)), int(rng.integers(1, 8))
        ids, values = rng.integers(-1, W, n), rng.standard_normal((2, n))
        for how, loop in loops.items():
            got = pool_words(values, ids, W, how)
            for row, g in zip(values, got):
                for w in range(W):
                    mine = [v for v, i in zip(row, ids) if i == w]
                    assert g[w] == pytest.approx(loop(mine) if mine else 0)


def test_maps_are_summed_over_keys_and_averaged_over_queries():
    rng = np.random.default_rng(2)
    for _ in range(20):
        n, W = int(rng.integers(2, 9)), 4
        ids, A = rng.integers(-1, W, n), rng.dirichlet(np.ones(n), (2, 3, n)).astype(np.float32)
        got = pool_map(A, ids, W)
        for at in np.ndindex(2, 3):
            for q in range(W):
                for k in range(W):
                    rows = [sum(float(A[at][i, j]) for j in range(n) if ids[j] == k) for i in range(n) if ids[i] == q]
                    assert got[at][q, k] == pytest.approx(sum(rows)/len(rows) if rows else 0)


def test_rows_of_word_maps_lack_only_special_tokens(wp):
    tt = align(wp, "It's not just bad")
    A = np.random.default_rng(3).dirichlet(np.ones(len(tt)), len(tt))
    to_special = pool_words(A[:, tt.is_special].sum(-1), tt.word_ids, how='mean')
    np.testing.assert_allclose(pool_map(A, tt.word_ids).sum(-1) + to_special, 1)


def test_nan_at_special_tokens_and_other_words_does_not_leak():
    for how in ('sum', 'mean', 'max', 'first'):
        assert pool_words([np.nan, 1, np.nan, 4], [-1, 0, 1, 2], how=how).tolist()[::2] == [1, 4]


def test_half_precision_is_summed_in_double():
    assert pool_words(np.full(4096, .25, np.float16), np.zeros(4096, int)).tolist() == [1024]


# rationales

def test_spans_mark_exactly_the_tokens_that_share_a_visible_character(tok):
    rng = random.Random(3)
    for a, b in zip(texts(60, 40), texts(61, 40)):
        tt = align(tok, a, b)
        spans = []
        for segment, text in enumerate(tt.texts):
            if text:
                spans += [(segment, start, rng.randint(start + 1, len(text))) for start in [rng.randrange(len(text))]]
        got = rationale_flags(tt, spans=spans)
        for i in range(len(tt)):
            touched = [c for s, start, end in spans if s == tt.segments[i]
                       for c in range(max(start, tt.offsets[i][0]), min(end, tt.offsets[i][1]))]
            assert got[i] == any(not tt.texts[tt.segments[i]][c].isspace() for c in touched)


def test_flags_per_word_and_per_whitespace_word_are_accepted(tok):
    tt = align(tok, 'It was bad, really bad!')
    by_words = rationale_flags(tt, words=[False, False, True, False, True, False, False])
    by_space = rationale_flags(tt, words=[0, 0, 1, 1, 0])
    assert (by_words <= by_space).all() and not by_space[tt.is_special].any()
    assert (by_words == rationale_flags(tt, spans=[(7, 10), (12, 18)])).all()
    assert (by_space == rationale_flags(tt, spans=[(0, 7, 11), (0, 12, 18)])).all()
    assert not rationale_flags(tt, spans=[]).any()


def test_flags_for_the_whole_text_fit_after_truncation(wp):
    tt = align(wp, 'bad film bad plot', max_length=4)
    assert rationale_flags(tt, words=[1, 0, 1, 0]).tolist() == [False, True, False, False]


def test_flags_of_a_pair_are_consecutive(wp):
    tt = align(wp, 'bad film', 'bad plot')
    assert [l for l, f in zip(tt.labels, rationale_flags(tt, words=[0, 1, 1, 0])) if f] == ['film', 'bad']
    assert rationale_flags(tt, spans=[(1, 0, 3)]).tolist() == (tt.word_ids == 2).tolist()


def test_token_over_several_words_is_marked_if_one_is():
    tt = align(byte_bpe(True, vocab_size=600), 'unforgettable...')
    dots = [i for i, t in enumerate(tt.tokens) if t == '...']
    assert len(dots) == 1
    assert tt.words == ['unforgettable', '...'] and tt.has_tokens.all()
    assert rationale_flags(tt, words=[0, 0, 0, 1])[dots[0]]


# errors

class Slow: is_fast = False


@pytest.mark.parametrize('call, words', [
    (lambda t: align(Slow(), 'a'), 'Slow is a slow tokenizer'),
    (lambda t: align(t, None), 'a text must be a string or a list of words, got None'),
    (lambda t: align(t, float('nan')), 'a text must be a string or a list of words, got nan'),
    (lambda t: align(t, ['a', 3]), 'a text must be a string or a list of words'),
    (lambda t: align(t, 'a\ud800b'), 'an unpaired surrogate at character 1'),
    (lambda t: align_batch(t, 'bad'), "texts must be a list, got the string 'bad'"),
    (lambda t: align_batch(t, ['a'], []), 'pairs must be as long as texts, got 0 and 1'),
    (lambda t: align(t, 'a', max_length=2), 'max_length must be greater than the number of special tokens (2), got 2'),
    (lambda t: pool_words([1.], [0, 1]), 'the last axis of values must be as long as word_ids, got shapes [1] and [2]'),
    (lambda t: pool_words([1., 2.], [0, 1], n_words=1), 'n_words must be at least 2'),
    (lambda t: pool_words([1.], [0], how='median'), "how must be 'sum', 'mean', 'max' or 'first', got 'median'"),
    (lambda t: _spread_words([1.], [0, 1]), 'word_values must have at least 2 values'),
    (lambda t: rationale_flags(align(t, 'a b')), 'either as spans or as words'),
    (lambda t: rationale_flags(align(t, 'a b'), spans=[(0, 1)], words=[1, 0]), 'either as spans or as words'),
    (lambda t: rationale_flags(align(t, 'a b'), words=[1, 0, 1]),
     'one flag for each of the 2 words (or 2 white-space words)'),
    (lambda t: rationale_flags(align(t, 'a b'), words=[.5, 0]), 'words must be flags, 0 or 1'),
    (lambda t: rationale_flags(align(t, 'a b'), spans=[(2, 2)]), 'spans must lie inside the text'),
    (lambda t: rationale_flags(align(t, 'a b'), spans=[(-1, 2)]), 'spans must lie inside the text'),
    (lambda t: rationale_flags(align(t, 'a b'), spans=[(1, 0, 2)]), 'spans must lie inside the text'),
    (lambda t: rationale_flags(align(t, 'a', 'b'), spans=[(0, 1)]),
     'spans must be (segment, start, end) for a pair of texts'),
])
def test_invalid_input_gives_a_short_error(wp, call, words):
    with pytest.raises(ValueError) as e: call(wp)
    assert words in str(e.value)


def test_tokentext_repr_shows_its_content(wp):
    assert repr(align(wp, 'bad film', max_length=3)) == "TokenText('[CLS] bad [SEP]', 3 tokens, 2 words, 1 cut)"
