// The course's widgets.
import {CourseWidgetKeeper} from './book.js';
import {courseView} from './fragments.js';

export default {
  render({model, el}) {
    const about = model.get('about');
    return courseView(el, {about, keeper: new CourseWidgetKeeper(about, model)}).destroy;
  },
};
