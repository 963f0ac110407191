// Storage of a page. A browser may still be writing its local storage when the page reloads, and then returns old data
// or nothing. The session storage has no such gap but ends with the tab. So both store the data with the time, and the
// later one counts.
function courseTime(key) { return `${key} time`; }

function courseCopy(storage, key) {
  return {text: storage.getItem(key), time: Number(storage.getItem(courseTime(key)))};
}

// Return the text stored under `key`, or null; throw if there is no storage.
export function courseStored(key) {
  const [local, tab] = [localStorage, sessionStorage].map(storage => courseCopy(storage, key));
  return (tab.time && tab.time >= local.time ? tab : local).text;
}

export function courseStore(key, text) {
  const time = String(Date.now());
  for (const storage of [localStorage, sessionStorage]) {
    storage.setItem(key, text);
    storage.setItem(courseTime(key), time);
  }
}

// The tab stores the time of deletion, so that data the browser has not yet removed does not return at a reload.
export function courseForget(key) {
  for (const storage of [localStorage, sessionStorage])
    for (const name of [key, courseTime(key)]) storage.removeItem(name);
  sessionStorage.setItem(courseTime(key), String(Date.now()));
}
