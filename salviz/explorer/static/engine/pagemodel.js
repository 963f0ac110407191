// The models of a page, with the interface of a kernel: `offers` lists them, `ask` sends a question to the worker.
import {bytesOfBase64} from '../lib/packedtext.js';
import {modelKey} from './weights.js';

export class PageModel {
  // `models`: for each run {about, choices, attributions, needs}; `textOf(name)`: the text of a part of the page.
  constructor(models, textOf) {
    Object.assign(this, {models, textOf, whileTyping: true, waiting: new Map(), questions: 0});
  }

  // The worker starts from a Blob, which works for files as well.
  start() {
    if (this.worker) return this.worker;
    const program = bytesOfBase64(this.textOf('salviz-engine'));
    this.worker = new Worker(URL.createObjectURL(new Blob([program], {type: 'text/javascript'})));
    this.worker.onmessage = ({data: {content, frames}}) => this.hear(content, frames);
    this.worker.onerror = event => this.fail(event.message);
    this.models.forEach((model, run) => {
      // The newest model of the first run comes first, since the files of others may contain differences from it.
      for (const [key] of [...model.choices].reverse())
        this.worker.postMessage({load: modelKey(run, key), text: this.textOf(`salviz-model-${run}-${key}`)});
    });
    return this.worker;
  }

  offers() { return this.models; }

  async ask(question, answered) {
    const {kind} = question, id = String(this.questions += 1);
    this.waiting.set(kind, {id, answered});
    this.start().postMessage({ask: {...question, id}});
  }

  hear(content, frames) {
    const {id, answered} = this.waiting.get(content.kind) ?? {};
    if (content.id === id) answered({...content, frames});
  }

  fail(reason) {
    const waiting = [...this.waiting.values()];
    this.waiting.clear();
    for (const {answered} of waiting)
      answered({error: `The engine of this page failed (${reason ?? 'unknown reason'}); reload the page.`});
  }

  close() { this.worker?.terminate(); }
}
