// The worker of a page: unpacks the models and answers questions, of which only the newest of each kind counts.
import {Network} from './network.js';
import {PageAnswers} from './pageanswers.js';
import {trainingAnswers} from './pagetraining.js';
import {TextReader} from './textreader.js';
import {bytesOfBase64, unpackWeights} from './weights.js';

async function openedModel(text, Tokenizer) {
  const {header, config, weights} = await unpackWeights(bytesOfBase64(text));
  return new PageAnswers(new Network(config, weights), new TextReader(Tokenizer, header.tokenizer, header), header);
}

// `scope`: the worker's global scope; `Tokenizer`: the class of @huggingface/tokenizers. Messages: {load: run, text}
// with a model in base64, and {ask: question}; each part of an answer is posted as {content, frames}.
export function startEngine(scope, Tokenizer) {
  const models = new Map(), newest = new Map();
  const answer = async question => {
    const {id, kind, run} = question;
    const say = (content, frames) => scope.postMessage({content: {id, kind, ...content}, frames},
      frames.map(({buffer}) => buffer));
    try {
      const model = await models.get(run);
      if (newest.get(kind) !== id) return;
      const isOld = () => newest.get(kind) !== id;
      if (kind === 'vectors') model.vectors(question, say);
      else if (trainingAnswers[kind]) await trainingAnswers[kind](model, question, say, isOld);
      else await model.answer(question, say, isOld);
    } catch (error) { say({error: error.message, more: false}, []); }
  };
  scope.onmessage = ({data: {load, text, ask}}) => {
    if (load !== undefined) {
      models.set(load, openedModel(text, Tokenizer));
      models.get(load).catch(() => {});   // reported by each answer
    }
    if (!ask) return;
    newest.set(ask.kind, ask.id);
    answer(ask);
  };
}
