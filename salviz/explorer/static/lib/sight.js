// After 'Run All Cells', JupyterLab ends at the last cell, and the explorer may be far above. This scrolls it back into
// view at the start and at the end of the run, unless the user interacts with something else.

const sightSoon = 100, sightTries = 50, sightOften = 400, sightMargin = 300, sightSettles = 4;

function sightCells(notebook) { return [...notebook.querySelectorAll('.jp-Cell')]; }

// Were all cells run, not only this one? Only then is the last cell active, even while others are still running.
function sightAllRun(box, notebook) {
  const last = sightCells(notebook).at(-1);
  return Boolean(last?.classList.contains('jp-mod-active')) && !last.contains(box);
}

function sightBusy(notebook) {
  return [...notebook.querySelectorAll('.jp-InputPrompt')].some(prompt => prompt.textContent.includes('*'));
}

// Scrolls only the notebook, never the page around it.
function sightBring(box) {
  const outer = box.closest('.jp-WindowedPanel-outer');
  if (!outer || !box.clientHeight) return;
  const [here, frame] = [box, outer].map(el => el.getBoundingClientRect());
  if (here.top >= frame.top && here.top <= frame.bottom - Math.min(sightMargin, here.height)) return;
  outer.scrollTop += here.top - frame.top - 8;
}

// Returns a function that stops this.
export function scrollIntoSight(box) {
  let timer = null, touched = null, notebook = null;
  const touch = event => { touched = event.target; };
  const events = ['pointerdown', 'keydown', 'wheel'];
  const end = () => {
    clearTimeout(timer);
    for (const name of events) document.removeEventListener(name, touch, true);
    if (notebook) delete notebook.dataset.salvizInSight;
  };
  const elsewhere = () => touched && !box.contains(touched);
  const follow = left => {
    if (elsewhere() || !left) return void end();
    sightBring(box);
    timer = setTimeout(() => follow(sightBusy(notebook) ? sightSettles : left - 1), sightOften);
  };
  // A widget is attached to the page and gets a height only some time after its creation.
  const begin = left => {
    const found = box.closest('.jp-Notebook');
    if (left && !(found && box.clientHeight)) return void (timer = setTimeout(() => begin(left - 1), sightSoon));
    // If there are several explorers, only the first one shown is scrolled into view.
    if (!found || found.dataset.salvizInSight || !sightAllRun(box, found)) return void end();
    notebook = found;
    notebook.dataset.salvizInSight = 'true';
    return void follow(sightSettles);
  };
  for (const name of events) document.addEventListener(name, touch, {capture: true, passive: true});
  begin(sightTries);
  return end;
}
