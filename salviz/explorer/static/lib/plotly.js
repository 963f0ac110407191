// Loads the bundled plotly: a separate gzipped file that is unpacked only when a curve is drawn.
import {idle} from './idle.js';

export async function gunzip(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Runs a CommonJS module in a script element: this needs neither `require`, which JupyterLab lacks, nor `eval`, which a
// page may forbid.
function plotlyRun(source) {
  const script = document.createElement('script'), place = `salvizPlotly${Math.random().toString(36).slice(2)}`;
  script.textContent =
    `window.${place} = (function (module, exports, define) {\n${source}\n`
    + 'return module.exports;\n})({exports: {}}, {});';
  document.head.append(script);
  script.remove();
  const found = window[place];
  delete window[place];
  return found?.newPlot ? found : null;
}

// Returns a function that resolves to plotly: the page's own if it has one, else the one from `packed()`, else null. It
// is loaded only once.
export function plotlyLoader(packed) {
  let once = null;
  const load = async () => {
    if (window.Plotly?.newPlot) return window.Plotly;
    const bytes = await packed();
    if (!bytes?.length) return null;
    const source = new TextDecoder().decode(await gunzip(bytes));
    await idle();
    return plotlyRun(source);
  };
  return () => once ??= load().catch(error => { console.warn('salviz: could not load plotly', error); return null;
    });
}
