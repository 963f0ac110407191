// The live explorer in notebook outputs. The outputs are HTML, so that a saved notebook needs no kernel; with a running
// kernel, the widget finds its placeholder elements and replaces their contents.
const placesTries = 50, placesWait = 200;

export class Places {
  constructor(model) {
    this.model = model;
    this.views = new Map();
    this.seek = () => this.fill();
    this.observer = new MutationObserver(this.seek);
    this.observer.observe(document.body, {childList: true, subtree: true});
    model.on('change:place', this.seek);
    this.fill();
  }

  fill() {
    const id = this.model.get('place');
    if (!id) return;
    for (const place of document.getElementsByClassName(`salviz-place-${id}`))
      if (!this.views.has(place)) this.take(place, id);
  }

  // An output that is rendered again takes over the view of the element that it replaces.
  async take(place, id) {
    const [left, view] = [...this.views].find(([old, shown]) => shown && !old.isConnected) ?? [];
    this.views.delete(left);
    this.views.set(place, view ?? null);
    if (view) return void this.show(place, view);
    try {
      const view = await this.viewOf(id);
      if (!place.isConnected) {
        this.views.delete(place);
        return void view.remove();
      }
      this.views.set(place, view);
      this.show(place, view);
    } catch (error) { console.warn('salviz: could not show the live view', error); }
  }

  // After a page reload, models become available one after the other.
  async viewOf(id) {
    const manager = this.model.widget_manager;
    for (let tries = 1; ; tries++) {
      try { return await manager.create_view(await manager.get_model(id)); } catch (error) {
        if (tries === placesTries || this.closed) throw error;
      }
      await new Promise(done => setTimeout(done, placesWait));
    }
  }

  show(place, {luminoWidget}) {
    place.dataset.live = '';
    place.salvizCopy?.destroy();
    place.replaceChildren();
    if (luminoWidget.isAttached) place.append(luminoWidget.node);
    else luminoWidget.constructor.attach(luminoWidget, place);
  }

  close() {
    this.closed = true;
    this.observer.disconnect();
    this.model.off('change:place', this.seek);
  }
}
