"""TrOCR, Donut and Whisper: each output of an encoder covers the pixels or the moment that change it, weights equal
products of matrices in float64, and what cannot be mapped is rejected"""
from functools import partial

import numpy as np
import pytest
import torch
from transformers import Pix2StructConfig, Pix2StructForConditionalGeneration

from salviz.analysis import transcripts
from salviz.analysis.answers import answer_map, answer_snapshot, answer_words, image_fraction, through_tower
from salviz.analysis.transcripts import explain_transcript
from salviz.model_explorer import explore
from salviz.models.encoder_inputs import encoder_input, reads_with_encoder
from salviz.models.small_vision_language import small_encoder_decoder, small_vision_language
from salviz.views.answers import answer_heat_map

pytestmark = pytest.mark.numeric
unresized, resized = dict(trocr=(28, 28), donut=(32, 48)), dict(trocr=(33, 61), donut=(40, 90))

def picture(height, width): return np.random.default_rng(0).integers(0, 255, (height, width, 3)).astype(np.uint8)

def tone(seconds, pitch=440): return np.sin(2*np.pi*pitch*np.arange(int(16000*seconds))/16000).astype(np.float32)

def without_mixing(model):
    "Switch off the attention of the encoder, so that each patch reaches only its own output"
    encoder = model.get_encoder()
    for name, p in encoder.named_parameters():
        if any(part in name for part in ('attention.output', 'o_proj', 'out_proj')): p.data.zero_()
    return model

def outputs(model, values):
    inputs = {model.main_input_name: values, 'decoder_input_ids': torch.tensor([[1]])}
    with torch.no_grad(): return model(**inputs).encoder_last_hidden_state[0]

def changed(a, b): return ((a - b).abs().amax(-1) > 1e-6).nonzero()[:, 0].tolist()

@pytest.mark.parametrize('family', ['trocr', 'donut'])
def test_changing_the_pixels_of_an_output_changes_this_output_and_no_other_one(family):
    model, processor = small_encoder_decoder(family)
    image = picture(*unresized[family])
    found = encoder_input(model, processor, image)
    before = outputs(without_mixing(model), found.values)
    assert len(before) == found.special + found.layout.tokens
    boxes = found.layout.boxes()
    assert (boxes == boxes.round()).all()
    for token, (top, left, bottom, right) in enumerate(boxes.astype(int)):
        for y, x in ((top, left), (top, right - 1), (bottom - 1, left), (bottom - 1, right - 1)):
            other = image.copy()
            other[y, x] = 255 - other[y, x].astype(int)
            after = outputs(model, encoder_input(model, processor, other).values)
            assert changed(before, after) == [found.special + token]

@pytest.mark.parametrize('family', ['trocr', 'donut'])
def test_each_output_of_a_resized_image_reads_the_coordinates_of_its_box(family):
    model, processor = small_encoder_decoder(family)
    height, width = resized[family]
    rows, columns = np.mgrid[:height, :width]
    found = encoder_input(model, processor, np.stack([rows, columns, 0*rows], -1).astype(np.uint8))
    reader, (crop,), shape = processor.image_processor, found.layout.crops, found.values.shape[-2:]
    read = found.values[0, :2].numpy()*np.reshape(reader.image_std[:2], (2, 1, 1))
    read = (read + np.reshape(reader.image_mean[:2], (2, 1, 1)))*255 + .5
    down = crop.top + (np.arange(shape[0]) + .5)*crop.height/shape[0]
    across = crop.left + (np.arange(shape[1]) + .5)*crop.width/shape[1]
    inside = (down > 2) & (down < height - 2) # interpolation repeats the border
    for values, expected in ((read[0][inside, 10:-10], down[inside, None]), (read[1][inside, 3:-3], across[3:-3])):
        assert np.abs(values - expected).max() < 1.2
    if family == 'donut': # 5 of 32 rows above the image are padding
        assert np.allclose(found.layout.boxes()[0], [-5*40/21, 0, 11*40/21, 30])

def test_changing_a_column_of_the_spectrogram_changes_the_outputs_around_its_moment():
    model, processor = small_encoder_decoder('whisper')
    found = encoder_input(model, processor, tone(1.5))
    assert (found.layout.width, found.layout.tokens, found.seconds) == (150, 100, .01)
    before = outputs(without_mixing(model), found.values)
    for output, (_, left, _, right) in enumerate(found.layout.boxes()[:75].astype(int)):
        other = found.values.clone()
        other[0, :, left:right] += 1
        after = outputs(model, other)
        assert output in changed(before, after) and set(changed(before, after)) <= {output - 1, output, output + 1}
        assert int((after - before).norm(dim=-1).argmax()) == output

def test_a_click_is_in_the_column_of_its_moment():
    model, processor = small_encoder_decoder('whisper')
    silent = np.zeros(16000, np.float32) + .01*tone(1)
    before = encoder_input(model, processor, silent).values[0]
    for second in (.11, .33, .57, .85):
        audio = silent.copy()
        audio[int(16000*second)] = 1.
        change = (encoder_input(model, processor, audio).values[0] - before).sum(0)
        at = (change > change.max()/2).nonzero().double().mean() # the noise floor follows the loudest moment
        assert abs(at - 100*second) < 1.5

def reference(model, found, ids, g, start, method):
    "Return the weights of one token by products of matrices over the outputs of the encoder and the decoder's tokens"
    for part in (model, model.get_encoder(), model.get_decoder()): part.config._attn_implementation = 'eager'
    out = model(**{model.main_input_name: found.values.double()}, decoder_input_ids=torch.tensor([ids]),
                output_attentions=True)
    parts = [*out.decoder_attentions, *out.cross_attentions, *(out.encoder_attentions if found.has_maps else ())]
    at, n = start + g, out.encoder_last_hidden_state.shape[1]
    grads = torch.autograd.grad(out.logits[0, at - 1, ids[at]], parts, allow_unused=True)
    A = [x[0].detach().numpy() for x in parts]
    G = [np.zeros_like(a) if x is None else x[0].numpy() for a, x in zip(A, grads)]
    layers, m = len(out.decoder_attentions), len(ids)
    if method == 'attention': # the mean of all blocks
        row = np.concatenate([np.mean([a[:, at - 1].mean(0) for a in A[layers:2*layers]], 0),
                              np.mean([a[:, at - 1].mean(0) for a in A[:layers]], 0)])/2
        return row, None
    kept, passed = (.5, [a.mean(0)/2 for a in A]) if method == 'rollout' else (
        1., [(a*x).clip(min=0).mean(0) for a, x in zip(A, G)])
    total = np.eye(n + m)
    for l in range(layers):
        block = np.eye(n + m)
        block[n:, n:] = kept*np.eye(m) + passed[l]
        total = block @ total
        block = np.eye(n + m)
        block[n:, :n], block[n:, n:] = passed[layers + l], kept*np.eye(m)
        total = block @ total
    row = total[n + at - 1] - (method != 'rollout')*np.eye(n + m)[n + at - 1]
    row /= row.sum()
    if not found.has_maps: return row, None
    through = np.eye(n)
    for p in passed[2*layers:]: through = (kept*np.eye(n) + p) @ through
    v = row[:n] @ through
    return row, (v*row[:n].sum()/v.sum())[found.special:]

@pytest.mark.parametrize('family', ['trocr', 'donut', 'whisper'])
def test_weights_equal_products_of_matrices_in_float64(family):
    model, processor = small_encoder_decoder(family)
    source = tone(.7) if family == 'whisper' else picture(*resized[family])
    model = model.double()
    e = explain_transcript(model, processor, source, 'what is', 3)
    found = encoder_input(model, processor, source)
    outputs = found.special + found.layout.tokens
    words = processor.tokenizer.convert_tokens_to_ids(['<s>', 'what', 'is'])
    ids = [*words, *processor.tokenizer.convert_tokens_to_ids(e.answer)]
    assert e.start == outputs + 3 and e.is_image.sum() == found.layout.tokens
    for method in e.weights:
        for g in range(len(e.answer)):
            row, patches = reference(model, found, ids, g, 3, method)
            assert np.allclose(e.weights[method][g], row, atol=2e-6)
            if patches is not None: assert np.allclose(e.patch_weights[method][g], patches, atol=2e-6)
        words_weight = sum(w for _, w in answer_words(e, -1, method))
        row = e.weights[method][-1]
        assert np.isclose(words_weight + row[e.is_image].sum() + row[:e.special].sum(), 1, atol=1e-5)
        assert np.isclose(answer_map(e, -1, method).sum(), image_fraction(e, -1, method), atol=1e-5)
    assert (family == 'donut') == (not e.patch_weights) == any('attend within windows' in note for note in e.notes)

def test_the_maps_of_the_encoder_are_stored_once_in_single_precision(monkeypatch):
    seen = []
    def tower(method, maps, *args):
        seen.append((maps[0].dtype, maps[0].data_ptr()))
        return through_tower(method, maps, *args)
    monkeypatch.setattr(transcripts, 'through_tower', tower)
    explain_transcript(*small_encoder_decoder('trocr'), picture(28, 28), generate=2)
    assert len(seen) == 6 and {*seen} == {(torch.float32, seen[0][1])} # two tokens, three methods

def test_the_answer_is_that_of_generate_and_the_model_is_not_changed():
    model, processor = small_encoder_decoder('trocr')
    image = picture(28, 28)
    expected = model.generate(encoder_input(model, processor, image).values, max_new_tokens=5, do_sample=False)[0]
    before = model.encoder.config._attn_implementation
    model.train()
    e = explain_transcript(model, processor, image, generate=5)
    assert processor.tokenizer.convert_tokens_to_ids(e.answer) == expected[1:].tolist()
    assert model.training and model.encoder.config._attn_implementation == before
    assert all(p.requires_grad and p.grad is None for p in model.parameters())

def test_whisper_begins_with_the_most_probable_language():
    model, processor = small_encoder_decoder('whisper')
    audio, settings = tone(.5), model.generation_config
    settings.lang_to_id, settings.task_to_id = {'<|en|>': 60, '<|de|>': 61}, dict(transcribe=70)
    settings.no_timestamps_token_id, settings.begin_suppress_tokens = 71, [5]
    model.proj_out.weight.data[5] = 100*model.proj_out.weight.data[5]
    values = encoder_input(model, processor, audio).values
    with torch.no_grad(): logits = model(input_features=values, decoder_input_ids=torch.tensor([[1]])).logits[0, 0]
    e = explain_transcript(model, processor, audio, generate=2)
    language = 60 + int(logits[61] > logits[60])
    assert e.tokens[100:104] == [processor.tokenizer.decode([i]) for i in (1, language, 70, 71)] and e.start == 104
    assert e.answer[0] != processor.tokenizer.decode([5])

def test_the_explorer_takes_images_without_a_prompt_and_audio():
    for family, source in (('donut', dict(image=picture(20, 30))), ('whisper', dict(audio=tone(.5)))):
        snapshot = explore(*small_encoder_decoder(family), generate=2, **source).selected().snapshot
        answer = snapshot.info['answer']
        assert answer.get('seconds') == (.01 if family == 'whisper' else None)
        assert ('patches' in answer) == (family == 'whisper') and snapshot.arrays['answer_weights'].shape[1] == 2
    with pytest.raises(ValueError, match='image cannot be combined with audio= and prompt='):
        explore(*small_encoder_decoder('whisper'), audio=tone(.5), image=picture(4, 4))
    with pytest.raises(ValueError, match='missing: prompt$'):
        explore(*small_vision_language('llava'), image=picture(28, 28))

def test_wrong_arguments_are_rejected_at_the_start():
    model, processor = small_encoder_decoder('trocr')
    image, call = picture(28, 28), partial(explain_transcript, model, processor)
    for generate in (0, dict(max_new_tokens=3), 2.5):
        with pytest.raises(ValueError, match='explain_transcript: generate must be a positive integer'):
            call(image, generate=generate)
    with pytest.raises(ValueError, match='explain_transcript: methods must name at least one of attention, rollout'):
        call(image, methods=())
    with pytest.raises(ValueError, match='has 64 positions, and the prompt needs 3; generate must be at most 61'):
        call(image, 'what is', generate=62)
    with pytest.raises(ValueError, match='has 64 positions, and the prompt needs 81; shorten the prompt'):
        call(image, 'what is '*40, generate=1)
    with pytest.raises(ValueError, match='explain_transcript: processor must be a processor, .*, not its tokenizer'):
        explain_transcript(model, processor.tokenizer, image)
    with pytest.raises(ValueError, match='VisionEncoderDecoderModel reads images; pass its processor instead of'):
        encoder_input(model, processor.tokenizer, image)
    model, wrong = small_encoder_decoder('whisper')[0], processor
    with pytest.raises(ValueError, match='explain_transcript: WhisperFor.* reads audio; pass its processor'):
        explain_transcript(model, wrong, tone(.5))
    processor = small_encoder_decoder('whisper')[1]
    with pytest.raises(ValueError, match='audio must be an array .samples. of finite floats'):
        explain_transcript(model, processor, np.full(800, np.nan, np.float32))

def test_the_explorer_names_the_input_that_is_missing_or_not_read():
    model, _ = small_encoder_decoder('whisper')
    with pytest.raises(ValueError, match=r'about audio needs .*, its processor .*, audio=; missing: tokenizer$'):
        explore(model, audio=tone(.5))
    with pytest.raises(ValueError, match='audio= requires Whisper, but VisionEncoderDecoderModel reads pixel_values'):
        explore(*small_encoder_decoder('trocr'), audio=tone(.5))

def test_a_snapshot_of_audio_has_its_duration():
    e = explain_transcript(*small_encoder_decoder('whisper'), tone(.3), generate=1)
    assert answer_snapshot(e).info['answer']['seconds'] == e.seconds == .01 and e.tokens[0] == 'frame 0'

def test_weights_on_padding_and_on_the_whole_image_are_not_on_the_picture_or_the_text():
    e = explain_transcript(*small_encoder_decoder('whisper'), tone(.5), generate=1)
    row = e.row(0)[e.is_image]
    assert np.isclose(image_fraction(e, 0), row[:25].sum(), atol=1e-6) and row[25:].sum() > .1 # 25 of 100 outputs
    view = answer_heat_map(answer_snapshot(e), [0])
    assert f'{row[:25].sum():.0%} on audio' in view.names[0] and 'audio, padding and text sum to 1' in view.caption
    e = explain_transcript(*small_encoder_decoder('trocr'), picture(28, 28), generate=1)
    snapshot = answer_snapshot(e)
    assert e.special == snapshot.info['answer']['special'] > 0 and '[whole' not in snapshot.texts[0]
    assert '[whole image]' not in {*snapshot.words, *(word for word, _ in answer_words(e, 0))}
    view = answer_heat_map(snapshot, [0])
    assert '[whole image]' not in view.words and 'image, the output for the whole image and text' in view.caption

def pix2struct():
    both = dict(d_kv=8, d_ff=16, num_heads=2)
    return Pix2StructForConditionalGeneration(Pix2StructConfig(
        text_config=dict(hidden_size=16, num_layers=1, vocab_size=20, **both),
        vision_config=dict(hidden_size=16, patch_embed_hidden_size=16, d_ff=16, d_kv=8, num_hidden_layers=1,
                           num_attention_heads=2)))

def test_what_cannot_be_mapped_is_rejected_with_the_reason():
    model = pix2struct()
    assert reads_with_encoder(model) and not reads_with_encoder(small_vision_language('llava')[0])
    with pytest.raises(ValueError, match='explain_transcript: Pix2Struct.* is not supported, because the mapping'):
        explain_transcript(model, small_encoder_decoder('trocr')[1], picture(4, 4))
    model, processor = small_encoder_decoder('donut')
    processor.image_processor.do_align_long_axis = True
    with pytest.raises(ValueError, match='because the image processor may rotate the image'):
        explain_transcript(model, processor, picture(40, 30))
    model, processor = small_encoder_decoder('donut')
    processor.image_processor.size = dict(height=40, width=48)
    with pytest.raises(ValueError, match='because the encoder pads images of 40 × 48 pixels to blocks of 16'):
        explain_transcript(model, processor, picture(40, 30))
    with pytest.raises(ValueError, match='audio must be an array .* at most 2 s long, got float32'):
        explain_transcript(*small_encoder_decoder('whisper'), tone(2.5))
