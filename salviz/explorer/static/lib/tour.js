// The tour of the explorer: each panel in turn is framed and explained in a line at its top, which covers nothing. The
// tour opens automatically until it has been closed once.
import {claimKey} from './cells.js';
import {buttonOf, elementOf, setText} from './controls.js';

const tourKey = 'salviz-tour', tourOrder = ['heads', 'map', 'signal', 'sentence', 'whatif', 'time'];

// The browser's storage; null where there is none, such as in a frame without an origin.
function tourMemory() {
  try {
    window.localStorage.getItem(tourKey);
    return window.localStorage;
  } catch { return null; }
}

// Without storage, the tour would open every time; it is then shown on request only.
function tourUnseen() {
  const memory = tourMemory();
  return Boolean(memory) && memory.getItem(tourKey) === null && !document.querySelector('.salviz .sv-tour');
}

function tourSeen() {
  try { window.localStorage.setItem(tourKey, 'seen'); } catch { return false; }
  return true;
}

export class Tour {
  // `panels()`: the panels in view, each {name, title, el, tour, tab}; `open(panel)`: shows its tab.
  constructor(panels, open) {
    Object.assign(this, {panels, open, at: 0});
    this.text = elementOf('span', 'sv-tour-text');
    this.back = buttonOf('Back', 'previous step', () => this.go(-1));
    this.next = buttonOf('Next', 'next step', () => this.go(1));
    this.skip = buttonOf('Skip', 'close the tour; it is not shown again', () => this.close());
    this.el = elementOf('div', 'sv-tour', this.text,
      elementOf('span', 'sv-tour-buttons', this.back, this.next, this.skip));
    this.el.setAttribute('role', 'region');
    this.el.setAttribute('aria-label', 'tour of the explorer');
    this.el.addEventListener('keydown', e => this.keyed(e));
  }

  get isOpen() { return Boolean(this.el.parentNode); }

  // When it opens automatically, the tour does not take the focus or switch tabs; one tour per page is enough.
  offer() { if (this.steps().length > 1 && tourUnseen()) this.place(0); }

  steps() {
    return this.panels().filter(panel => panel.tour && tourOrder.includes(panel.name))
      .sort((a, b) => tourOrder.indexOf(a.name) - tourOrder.indexOf(b.name));
  }

  start() {
    if (!this.steps().length) return;
    this.place(0);
    this.show();
  }

  go(by) {
    tourSeen();
    if (this.at + by >= this.steps().length) return void this.close();
    this.place(this.at + by);
    this.show();
  }

  place(at) {
    const steps = this.steps();
    this.at = Math.max(0, Math.min(steps.length - 1, at));
    const panel = this.panel = steps[this.at];
    setText(this.text, `${this.at + 1} of ${steps.length}. ${panel.title}: ${panel.tour}`);
    this.back.hidden = this.at === 0;
    setText(this.next, this.at + 1 < steps.length ? 'Next' : 'Done').setAttribute('aria-label',
      this.at + 1 < steps.length ? 'next step' : 'close the tour; it is not shown again');
    this.next.title = this.next.getAttribute('aria-label');
    panel.el.prepend(this.el);
  }

  // A requested step is scrolled into view.
  show() {
    this.open(this.panel);
    this.panel.el.hidden = false;
    this.el.scrollIntoView({block: 'nearest'});
    this.next.focus({preventScroll: true});
  }

  keyed(e) {
    if (e.key !== 'Escape') return;
    claimKey(e);
    this.close();
  }

  close() {
    const had = this.el.contains(document.activeElement), {panel} = this;
    tourSeen();
    this.el.remove();
    if (had) panel?.el.querySelector('.sv-ask, canvas, button')?.focus({preventScroll: true});
    for (const other of document.querySelectorAll('.salviz .sv-tour')) other.remove();
  }
}
