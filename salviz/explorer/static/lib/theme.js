// Light or dark theme: JupyterLab's setting, else the system's.

function themeNow(system) {
  const lab = document.body.dataset.jpThemeLight;
  if (lab !== undefined) return lab === 'true' ? 'light' : 'dark';
  return system.matches ? 'dark' : 'light';
}

// Calls `tell` with 'light' or 'dark' now and at each change; returns a function that stops this.
export function watchTheme(tell) {
  const system = window.matchMedia('(prefers-color-scheme: dark)'), now = () => tell(themeNow(system));
  const body = new MutationObserver(now);
  body.observe(document.body, {attributes: true, attributeFilter: ['data-jp-theme-light']});
  system.addEventListener('change', now);
  now();
  return () => {
    body.disconnect();
    system.removeEventListener('change', now);
  };
}
