// What can wait: a moment in which the browser has painted what it was told and has nothing else to do, or two seconds
// of being busy. Safari does not tell.
export function idle() {
  const ask = window.requestIdleCallback;
  return new Promise(done => { if (ask) ask(() => done(), {timeout: 2000}); else setTimeout(done, 50); });
}
