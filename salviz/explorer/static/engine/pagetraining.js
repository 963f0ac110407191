// Questions of a page that trains its model: `train` runs one training and reports every step, `look` runs the model
// before training and after each training on one text.
import {softmaxRow} from './operations.js';
import {RowTraining} from './rowtraining.js';

// The fraction of attention on each word: special tokens are left out, and the pieces of a word are added.
export function wordFractions(attention, {wordIds, words}) {
  const out = new Float64Array(words.length);
  let total = 0;
  wordIds.forEach((word, t) => {
    if (word < 0) return;
    out[word] += attention[t];
    total += attention[t];
  });
  return out.map(x => x / total);
}

class PageTrainings {
  constructor(model) { Object.assign(this, {model, texts: new Map(), trained: new Map()}); }

  // {read, text}: the tokens of a text, and what training does not change of it.
  text(text) {
    if (!this.texts.has(text)) {
      const read = this.model.read([text]);
      this.texts.set(text, {read, text: RowTraining.text(this.model.network, read.rows, read.segments)});
    }
    return this.texts.get(text);
  }

  example({text: words, marks, label}) {
    const {read, text} = this.text(words);
    if (marks.length !== read.words.length)
      throw new Error(`marks must have one entry for each of the ${read.words.length} words of “${words}”, `
        + `got ${marks.length}`);
    const counts = read.wordIds.map(word => word >= 0);
    return {text, label, counts, marks: read.wordIds.map(word => word < 0 ? 0 : marks[word])};
  }

  answers(training, texts) {
    return texts.map(words => {
      const {read, text} = this.text(words), {attention, logits} = training.forward(text);
      return {fractions: wordFractions(attention, read), probabilities: softmaxRow(Float64Array.from(logits))};
    });
  }

  // Trains on the texts with marks, from the weights of the page, and answers for all texts before the first step and
  // after each: {step, of, losses, answers: [{fractions [words], probabilities}]}.
  async train({name, texts, settings}, say, isOld) {
    const training = new RowTraining(this.model.network, settings), pause = () => new Promise(done => setTimeout(done));
    const all = texts.map(({text}) => text), of = settings.steps;
    for (const [i, text] of all.entries()) {
      say({reading: i / all.length, more: true}, []);
      await pause();
      if (isOld()) return;
      this.text(text);
    }
    const examples = texts.filter(({marks}) => marks?.some(Boolean)).map(example => this.example(example));
    if (!examples.length)
      throw new Error('no word is marked, so there is nothing to learn from; mark at least one word');
    for (let step = 0; step <= of; step++) {
      const losses = step ? training.step(examples) : null;
      say({step, of, losses, answers: this.answers(training, all), more: step < of}, []);
      await pause();
      if (isOld()) return;
    }
    this.trained.set(name, training);
  }

  // {words, answers: {name: {fractions, probabilities}}, notice: about word pieces that are not in the page}. The name
  // of the model before training is ''.
  look({text}, say) {
    const {read} = this.text(text), untrained = new RowTraining(this.model.network, {steps: 1, learningRate: 0});
    const answers = Object.fromEntries([['', untrained], ...this.trained].map(([name, training]) =>
      [name, this.answers(training, [text])[0]]));
    say({words: read.words, answers, notice: this.model.notice([{read}]), more: false}, []);
  }
}

const pageTrainings = new WeakMap();

function trainingsOf(model) {
  if (!pageTrainings.has(model)) pageTrainings.set(model, new PageTrainings(model));
  return pageTrainings.get(model);
}

// {kind of question: function}
export const trainingAnswers = {
  train: (model, question, say, isOld) => trainingsOf(model).train(question, say, isOld),
  look: (model, question, say) => trainingsOf(model).look(question, say),
};
