// What a page keeps so that a reload loses nothing. A browser may still be writing its local storage when the page is
// read again, and gives what was there before, or nothing; the storage of the tab has no such gap, but ends with the
// tab. So both keep it, with the time, and the later one counts.
function courseTime(key) { return `${key} time`; }

function courseCopy(storage, key) {
  return {text: storage.getItem(key), time: Number(storage.getItem(courseTime(key)))};
}

// The text that was kept under `key`, null if there is none; throws where there is no storage.
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

// The tab remembers when, so that what the browser has not yet removed does not come back at a reload.
export function courseForget(key) {
  for (const storage of [localStorage, sessionStorage])
    for (const name of [key, courseTime(key)]) storage.removeItem(name);
  sessionStorage.setItem(courseTime(key), String(Date.now()));
}
