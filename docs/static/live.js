// Fit the frame of the explorer to the height of its panels, and give it the theme that the reader chose, in the
// attribute that JupyterLab uses. If the browser isolates files (a site opened from disk), the frame scrolls and
// follows the theme of the system.

function isDark() {
  const chosen = document.body.dataset.theme;
  if (chosen === 'light' || chosen === 'dark') return chosen === 'dark';
  return window.matchMedia('(prefers-color-scheme: dark)').matches;
}

function setTheme(frame) {
  const body = frame.contentDocument?.body;
  if (body) body.dataset.jpThemeLight = String(!isDark());
}

function fit(frame) {
  const panels = frame.contentDocument?.getElementById('salviz-page');
  if (!panels) return;
  const least = 400; // before anything is drawn
  new frame.contentWindow.ResizeObserver(() => {
    const height = Math.ceil(panels.getBoundingClientRect().height) + 4;
    frame.style.height = `${Math.max(least, height)}px`;
  }).observe(panels);
}

document.addEventListener('DOMContentLoaded', () => {
  const frames = [...document.querySelectorAll('iframe.salviz-live')], setAll = () => frames.forEach(setTheme);
  for (const frame of frames) {
    const begin = () => {
      setTheme(frame);
      fit(frame);
    };
    frame.addEventListener('load', begin);
    if (frame.contentDocument?.readyState === 'complete') begin(); // the frame may load before the page
  }
  new MutationObserver(setAll).observe(document.body, {attributes: true, attributeFilter: ['data-theme']});
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', setAll);
});
