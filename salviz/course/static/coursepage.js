// The course in a page of its own.
import {openPage} from './page.js';
export function mountCourse(root) { return [openPage, root]; }
