// Marks in a notebook: the state is a trait, which the kernel reads.
import {mountMarks} from './marks.js';

function renderMarks({model, el}) {
  const write = state => {
    model.set('state', state);
    model.save_changes();
  };
  const view = mountMarks(el, model.get('about').set, model.get('state'), write);
  const take = () => { if (model.get('state') !== view.state) view.take(model.get('state')); };
  model.on('change:state', take);
  return () => {
    model.off('change:state', take);
    view.destroy();
  };
}

export default {render: renderMarks};
