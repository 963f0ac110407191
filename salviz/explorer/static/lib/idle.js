// Waits until the browser has painted pending changes and is idle, at most two seconds. Safari does not support idle
// callbacks.
export function idle() {
  const ask = window.requestIdleCallback;
  return new Promise(done => { if (ask) ask(() => done(), {timeout: 2000}); else setTimeout(done, 50); });
}
