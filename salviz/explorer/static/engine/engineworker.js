// The worker of a page: unpacks the models and answers questions, of which only the newest of each kind counts.
import {bytesOfText} from '../lib/packedtext.js';
import {Network} from './network.js';
import {PageAnswers} from './pageanswers.js';
import {trainingAnswers} from './pagetraining.js';
import {TextReader} from './textreader.js';
import {modelKey, unpackWeights} from './weights.js';

// `base`: the first model of the page, from which the file of another one may contain differences.
async function openedModel(text, Tokenizer, base) {
  const unpacked = await unpackWeights(bytesOfText(text), (await base)?.unpacked),
    {header, config, weights} = unpacked;
  const model = new PageAnswers(new Network(config, weights), new TextReader(Tokenizer, header.tokenizer, header),
    header);
  return Object.assign(model, {unpacked});
}

// `scope`: the worker's global scope; `Tokenizer`: the class of @huggingface/tokenizers. Messages: {load: key, text}
// with the key of a model and its file as `text_of_bytes` returns it, and {ask: question}; each part of an answer is
// posted as {content, frames}.
export function startEngine(scope, Tokenizer) {
  const models = new Map(), newest = new Map(), modelOf = ({run, choice}) => models.get(modelKey(run, choice));
  const answer = async question => {
    const {id, kind, other} = question;
    const say = (content, frames) => scope.postMessage({content: {id, kind, ...content}, frames},
      frames.map(({buffer}) => buffer));
    try {
      const [model, first] = await Promise.all([modelOf(question), modelOf(other ?? question)]);
      if (newest.get(kind) !== id) return;
      const isOld = () => newest.get(kind) !== id;
      if (kind === 'vectors') model.vectors(question, say);
      else if (trainingAnswers[kind]) await trainingAnswers[kind](model, question, say, isOld);
      else await model.answer(question, say, isOld, first);
    } catch (error) { say({error: error.message, more: false}, []); }
  };
  scope.onmessage = ({data: {load, text, ask}}) => {
    if (load !== undefined) {
      models.set(load, openedModel(text, Tokenizer, [...models.values()][0]));
      models.get(load).catch(() => {});   // reported by each answer
    }
    if (!ask) return;
    newest.set(ask.kind, ask.id);
    answer(ask);
  };
}
