// The kinds of question, one file each.
import {courseChoice} from './kinds/ask-choice.js';
import {courseHead} from './kinds/ask-head.js';
import {courseNumberKind} from './kinds/ask-number.js';
import {courseOrder} from './kinds/ask-order.js';
import {courseSlopeKind} from './kinds/ask-slope.js';
import {courseWords} from './kinds/ask-words.js';

export const courseKinds = Object.fromEntries([courseWords, courseHead, courseChoice, courseOrder, courseNumberKind,
  courseSlopeKind].map(kind => [kind.kind, kind]));
