// plotly as it travels with us: its own file, gzipped, unpacked only when a curve is to be drawn.
import {idle} from './idle.js';

export async function gunzip(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// A CommonJS module in a script element: it needs neither require, which JupyterLab has not, nor eval, which a page may
// forbid.
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

// A function that gives plotly: the page's own if it has one, else ours from `packed()`, else null. Done once, whoever
// asks.
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
  return () => once ??= load().catch(error => { console.warn('salviz: plotly could not be loaded', error); return null;
    });
}
