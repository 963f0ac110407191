// Accessibility that the theme lacks: heading levels of the captions in the sidebar, names of both sidebars, and
// keyboard focus for code that scrolls sideways.

function focusScrolling() {
  for (const code of document.querySelectorAll('.highlight pre')) {
    if (code.scrollWidth > code.clientWidth) code.tabIndex = 0;
    else code.removeAttribute('tabindex');
  }
}

document.addEventListener('DOMContentLoaded', () => {
  document.querySelectorAll('.caption[role="heading"]').forEach(caption => caption.setAttribute('aria-level', '2'));
  document.querySelector('.sidebar-drawer')?.setAttribute('aria-label', 'Pages');
  document.querySelector('.toc-drawer')?.setAttribute('aria-label', 'On this page');
  focusScrolling();
  window.addEventListener('resize', focusScrolling);
});
