// The explorer in a page: as high as its panels, light or dark as the reader chose, which it looks for where JupyterLab
// says it. Where a browser keeps files apart (a site opened from disk) it scrolls, and follows the system's theme.

function isDark() {
  const chosen = document.body.dataset.theme;
  if (chosen === 'light' || chosen === 'dark') return chosen === 'dark';
  return window.matchMedia('(prefers-color-scheme: dark)').matches;
}

function tellTheme(frame) {
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
  const frames = [...document.querySelectorAll('iframe.salviz-live')], tellAll = () => frames.forEach(tellTheme);
  for (const frame of frames) {
    const begin = () => {
      tellTheme(frame);
      fit(frame);
    };
    frame.addEventListener('load', begin);
    if (frame.contentDocument?.readyState === 'complete') begin(); // it may be here before the page around it
  }
  new MutationObserver(tellAll).observe(document.body, {attributes: true, attributeFilter: ['data-theme']});
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', tellAll);
});
