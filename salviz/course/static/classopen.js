// Opens the page of a class on what stands in it.
import {mountClass} from './classpage.js';

function openClass() {
  const given = document.getElementById('salviz-class');
  return mountClass(document.body, JSON.parse(given.textContent));
}

window.salvizClass = openClass();
