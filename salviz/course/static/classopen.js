// Open the page of a class with the data in it.
import {courseUnpacked} from './book.js';
import {mountClass} from './classpage.js';

async function openClass() {
  const [contents, truths] = ['salviz-class', 'salviz-truths'].map(id => document.getElementById(id));
  return mountClass(document.body, JSON.parse(contents.textContent), await courseUnpacked(truths));
}

window.salvizClass = await openClass();
